"""The pages of the reference: which public names belong together. What they say comes from the docstrings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Area:
    """A page: its file, its title, a sentence, and the names on it."""

    name: str
    title: str
    about: str
    names: tuple[str, ...]
    inherits: bool = False  # whether parameters stand in a base class


AREAS = (
    Area(
        "federations",
        "Federations",
        "A federation in one process: make it, train it, look at it ([how](../python.md)).",
        (
            "federate",
            "Federation",
            "Training",
            "Setup",
            "Optimizer",
            "PartyTraining",
            "Loss",
            "Batches",
            "Source",
            "Record",
            "place",
        ),
    ),
    Area(
        "methods",
        "Methods and agreement",
        "What is sent, and what all participants choose alike ([all options](../options.md)).",
        (
            "efvfl",
            "svfl",
            "cvfl",
            "fedbcd",
            "celu",
            "Method",
            "Link",
            "Agreement",
            "PrivateLabels",
            "SharedLabels",
            "CachedSteps",
            "Quorum",
        ),
    ),
    Area(
        "compressors",
        "Compressors",
        "Contractive maps with their wire codecs ([your own](../adding-a-compressor.md)).",
        (
            "Compressor",
            "Identity",
            "TopK",
            "RandomTopK",
            "RandK",
            "QSGD",
            "Sign",
            "Cast",
            "TopKQSGD",
            "Uniform",
            "Natural",
            "Columns",
            "LowRank",
            "Product",
            "Ramp",
        ),
    ),
    Area(
        "memories",
        "Memories",
        "What both ends of a link remember, and what the sender does ([your own](../adding-a-memory.md)).",
        ("Memory", "ErrorFeedback", "Direct", "EF14", "Momentum", "EControl", "Decay"),
    ),
    Area(
        "estimators",
        "Estimators",
        "Tables as scikit-learn has them ([how](../estimators.md)).",
        ("VerticalClassifier", "VerticalRegressor"),
        inherits=True,
    ),
    Area(
        "privacy",
        "Privacy",
        "Noise, and what it guarantees ([privacy with a number](../privacy.md)).",
        ("Accountant", "Protection", "VisitNoise", "RowProtection", "LabelRelease"),
    ),
    Area(
        "runs",
        "Runs and trackers",
        "Run files from Python, and what is told while they train ([how](../python.md)).",
        ("train", "Callback", "TensorBoardLogger", "MLflowLogger", "WandbLogger"),
    ),
    Area(
        "messages",
        "Messages and errors",
        "What is sent, byte by byte ([wire format](../wire.md)), and what is raised.",
        ("Message", "Packet", "EfvflError"),
    ),
)

# For searches: "top-k" is two words there, and finds this before whatever has a word with a k in its title.
HEADINGS = {"TopK": "TopK, top-k"}


def page_of(area: Area) -> str:
    """Return a page as mkdocstrings reads it."""
    parts = [f"# {area.title}\n\n{area.about}"]
    for name in area.names:
        parts.append(f"::: efvfl.{name}\n    options:\n      inherited_members: {str(area.inherits).lower()}")
        if name in HEADINGS:
            parts[-1] += f'\n      heading: "{HEADINGS[name]}"'
    return "\n\n".join(parts) + "\n"
