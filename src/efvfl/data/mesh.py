"""Triangle meshes: read OFF files, normalise their size, and render shaded views.

The reader and the rasteriser are compiled loops, because a data set of meshes has hundreds of millions of numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import DataError
from efvfl.util.jit import kernel

SAMPLES = 4  # samples on each side of a pixel: more => smoother edges, slower
AMBIENT = 0.25  # light on a face seen edge-on; the rest falls off with the angle to the camera (Lambert)

# An integer below 2^53 times or divided by one of these is rounded only once, so the result is the nearest float.
_POWERS = np.array([float(10**k) for k in range(23)])
_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[^\s#]+")
_SPACE = np.isin(np.arange(256), list(b" \t\n\v\f\r"))


@dataclass(frozen=True, eq=False)
class Mesh:
    """A surface of triangles; the orientation of their corners has no meaning."""

    vertices: NDArray[np.float64]  # (V, 3)
    faces: NDArray[np.int64]  # (F, 3), rows of `vertices`


@kernel
def _number(text: NDArray[np.uint8], start: int, stop: int) -> float:
    """Return the number at text[start:stop], or NaN if it is not a number or the fast method is not exact."""
    i = start + 1 if text[start] in (43, 45) else start  # plus and minus sign
    mantissa, exponent, digits, point = np.int64(0), np.int64(0), 0, False
    while i < stop and (48 <= text[i] <= 57 or (text[i] == 46 and not point)):
        if text[i] == 46:
            point = True
        else:
            digits += 1
            mantissa = mantissa * 10 + np.int64(text[i]) - 48 if digits <= 18 else mantissa
            exponent -= point
        i += 1
    if i < stop and digits > 0 and text[i] in (69, 101):  # e, E
        negative = i + 1 < stop and text[i + 1] == 45
        i += 2 if i + 1 < stop and text[i + 1] in (43, 45) else 1
        first, power = i, np.int64(0)
        while i < stop and i < first + 4 and 48 <= text[i] <= 57:
            power = power * 10 + np.int64(text[i]) - 48
            i += 1
        exponent += -power if negative else power
        digits = 0 if i == first else digits
    if i < stop or digits == 0 or digits > 18 or mantissa >= 1 << 53 or abs(exponent) > 22:
        return np.nan
    value = float(mantissa * _POWERS[exponent] if exponent >= 0 else mantissa / _POWERS[-exponent])
    return -value if text[start] == 45 else value


@kernel
def _scan(
    text: NDArray[np.uint8],
    space: NDArray[np.bool_],
    starts: NDArray[np.int64],
    lines: NDArray[np.int64],
    values: NDArray[np.float64],
) -> int:
    """Record the start, the line and the value of each word, without comments; return the number of words."""
    i, line, count, size = 0, 1, 0, text.size
    while i < size:
        if text[i] == 10 or (text[i] == 13 and not (i + 1 < size and text[i + 1] == 10)):
            line += 1
        if text[i] == 35:  # a comment, up to the end of the line
            while i < size and text[i] != 10 and text[i] != 13:
                i += 1
        elif space[text[i]]:
            i += 1
        else:
            start = i
            while i < size and not space[text[i]] and text[i] != 35:
                i += 1
            starts[count], lines[count], values[count] = start, line, _number(text, start, i)
            count += 1
    return count


class _Words:
    """The words of an OFF file, with their line numbers and values."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name = data, name
        text = np.frombuffer(data, dtype=np.uint8)
        space = _SPACE[text]
        most = np.count_nonzero(space[:-1] & ~space[1:]) + 1
        starts, lines, values = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
        count = _scan(text, _SPACE, starts, lines, values)
        self.starts, self.lines, self.values = starts[:count], lines[:count], values[:count]
        for at in map(int, np.flatnonzero(np.isnan(self.values))):  # too long for the fast method, or not a number
            if _NUMBER.fullmatch(self.word(at)):
                self.values[at] = float(self.word(at))

    def word(self, at: int) -> bytes:
        """Return the text of a word."""
        found = _WORD.match(self.data, self.starts[at])
        return found.group() if found else b""

    def fail(self, at: int, problem: str) -> NoReturn:
        """Raise an error about the line of a word, or about the end of the file after the last word."""
        if at < len(self.lines):
            raise DataError(f"{self.name}, line {self.lines[at]}: {problem}.")
        last = self.lines[-1] if len(self.lines) else 1
        raise DataError(f"{self.name}, line {last}: {problem}, but the file ends here. Is it cut short?")

    def check(self, wrong: NDArray[np.bool_], at: NDArray[np.int64], problem: str) -> None:
        """Raise an error about the first wrong word, if any; `problem` may contain its number {n} and its text {w}."""
        if wrong.any():
            n = np.unravel_index(int(wrong.argmax()), wrong.shape)
            word = self.word(at[n]).decode("ascii", "replace")[:40]
            self.fail(int(at[n]), problem.format(n=int(n[0]) + 1, w=repr(word)))

    def header(self) -> tuple[int, int, int]:
        """Return the numbers of vertices and faces, and the index of the first word after them."""
        if not len(self.starts):
            self.fail(0, "expected the word OFF")
        if not self.word(0).upper().startswith(b"OFF"):
            self.fail(0, f"expected the word OFF, got {self.word(0)[:20].decode('ascii', 'replace')!r}")
        glued = self.word(0)[3:]  # some files have no line break between OFF and the counts
        line = self.lines[0] if glued else self.lines[min(1, len(self.lines) - 1)]
        stop = int(np.searchsorted(self.lines, line, side="right"))
        counts = ([glued] if glued else []) + [self.word(at) for at in range(1, stop)]
        if len(counts) not in (2, 3) or not all(word.isdigit() and len(word) < 19 for word in counts):
            text = b" ".join(counts).decode("ascii", "replace")[:40]
            self.fail(stop - 1, f"expected the numbers of vertices, faces and edges, got {text!r}")
        return int(counts[0]), int(counts[1]), stop


def read_off(data: bytes | Path, name: str = "") -> Mesh:
    r"""Return the mesh of an OFF file, or of its contents; `name` is used in errors.

    Each line has one vertex or face, as in the Princeton data sets. Comments, blank lines, any line breaks, and counts
    directly after the word OFF are accepted; polygons become fans of triangles; values after a face's corners (a
    colour) are ignored. Everything else is an error that names the line.

    >>> read_off(b"OFF 3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n").faces.tolist()
    [[0, 1, 2]]
    """
    if isinstance(data, Path):
        name = name or str(data)
        try:
            data = data.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read the mesh {name}: {error}") from error
    words = _Words(data, name or "mesh")
    vertices, faces, start = words.header()
    rows = start + np.flatnonzero(np.diff(words.lines[start:], prepend=-1))
    sizes = np.diff(rows, append=len(words.starts))

    kind = f"vertex {{n}} of {vertices} needs 3 numbers"
    words.check(sizes[:vertices] != 3, rows[:vertices], f"{kind}, but this line has more or fewer, starting with {{w}}")
    if len(rows) < vertices:
        words.fail(len(words.starts), f"{kind.format(n=len(rows) + 1)}")
    at = rows[:vertices, None] + np.arange(3)
    points = words.values[at]
    words.check(~np.isfinite(points), at, f"{kind}, but {{w}} is not a finite number")

    kind, heads, sizes = f"face {{n}} of {faces}", rows[vertices : vertices + faces], sizes[vertices:][:faces]
    corners = words.values[heads]
    words.check(~(np.floor(corners) == corners), heads, f"{kind} needs its number of corners, got {{w}}")
    words.check(corners < 3, heads, f"{kind} needs at least 3 corners, got {{w}}")
    words.check(sizes <= corners, heads, f"{kind} declares {{w}} corners, but lists fewer")
    if len(heads) < faces:
        words.fail(len(words.starts), f"expected {kind.format(n=len(heads) + 1)}")
    if len(rows) > vertices + faces:
        words.fail(rows[vertices + faces], f"expected the end of the file after {vertices} vertices and {faces} faces")
    fan = corners.astype(np.int64) - 2
    owner = np.repeat(np.arange(faces), fan)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(fan) - fan, fan)
    at = heads[owner, None] + np.stack([np.ones_like(place), place + 2, place + 3], axis=1)
    index = words.values[at]
    wrong = ~((np.floor(index) == index) & (index >= 0) & (index < vertices))
    words.check(wrong, at, f"corner {{w}} of this face is not the index of a vertex, 0 to {vertices - 1}")
    return Mesh(points, index.astype(np.int64))


def normalise(mesh: Mesh) -> Mesh:
    """Return a mesh with the centre of the bounding box at the origin and the farthest vertex at distance 1.

    Vertices that belong to no face do not count.
    """
    used = np.zeros(len(mesh.vertices), dtype=np.bool_)
    used[mesh.faces] = True
    points = mesh.vertices[used]
    if not len(points):
        return mesh
    largest = np.abs(points).max() or 1.0  # divided out first, so that squares neither overflow nor underflow
    middle = (points.max(axis=0) / largest + points.min(axis=0) / largest) / 2
    radius = np.sqrt(((points / largest - middle) ** 2).sum(axis=1).max()) or 1.0
    vertices = np.where(used[:, None], mesh.vertices, 0.0) / largest
    return Mesh((vertices - middle) / radius, mesh.faces)


@kernel
def _draw(
    corners: NDArray[np.float64],
    faces: NDArray[np.int64],
    sizes: NDArray[np.float64],
    depth: NDArray[np.float64],
    light: NDArray[np.float64],
) -> None:
    """Draw triangles with a depth buffer. `corners` are column, row and nearness; `sizes` are twice the areas."""
    rows, columns = depth.shape
    for face in range(len(faces)):
        a, b, c = faces[face, 0], faces[face, 1], faces[face, 2]
        ax, ay, az = corners[a, 0], corners[a, 1], corners[a, 2]
        bx, by, bz = corners[b, 0] - ax, corners[b, 1] - ay, corners[b, 2] - az
        cx, cy, cz = corners[c, 0] - ax, corners[c, 1] - ay, corners[c, 2] - az
        seen = bx * cy - cx * by
        top = max(0.0, np.ceil(ay + min(0.0, by, cy)))
        bottom = min(rows - 1.0, np.floor(ay + max(0.0, by, cy)))
        # Edge-on, degenerate or outside the picture; `not` also rejects NaN and infinity.
        if not (abs(seen) > 0.0 and sizes[face] > 0.0 and top <= bottom):
            continue
        # The visible share of a triangle's area is the cosine of its angle to the camera, for both sides.
        shade = AMBIENT + (1 - AMBIENT) * min(1.0, abs(seen) / sizes[face])
        across, down = (bz * cy - cz * by) / seen, (cz * bx - bz * cx) / seen
        far, near = min(0.0, bz, cz), max(0.0, bz, cz)
        for row in range(int(top), int(bottom) + 1):
            y, left, right = row - ay, np.inf, -np.inf
            if by != 0.0 and min(0.0, by) <= y <= max(0.0, by):
                x = y * bx / by
                left, right = min(left, x), max(right, x)
            if cy != 0.0 and min(0.0, cy) <= y <= max(0.0, cy):
                x = y * cx / cy
                left, right = min(left, x), max(right, x)
            if by != cy and min(by, cy) <= y <= max(by, cy):
                x = bx + (y - by) * (cx - bx) / (cy - by)
                left, right = min(left, x), max(right, x)
            # Slightly wider, so that rounding leaves no gap between neighbours.
            first, last = max(0.0, np.ceil(ax + left - 1e-9)), min(columns - 1.0, np.floor(ax + right + 1e-9))
            if not first <= last:
                continue
            for column in range(int(first), int(last) + 1):
                z = across * (column - ax) + down * y
                z = az + min(max(z, far), near)  # the plane of a very thin triangle is inaccurate
                if z > depth[row, column]:
                    depth[row, column], light[row, column] = z, shade


def render(mesh: Mesh, views: int = 12, size: int = 32, elevation: float = 30.0) -> NDArray[np.uint8]:
    """Return grey pictures of a mesh in the unit sphere, uint8 of shape (views, size, size); 0 is background.

    The orthographic camera moves around the z axis in equal steps, from the x axis towards the y axis, `elevation`
    degrees above the horizon, together with the light. Both sides of a face are lit alike.
    """
    grid, up, faces = size * SAMPLES, np.radians(elevation), np.ascontiguousarray(mesh.faces)
    a, b, c = (mesh.vertices[faces[:, corner]] for corner in range(3))
    sizes = np.sqrt((np.cross(b - a, c - a) ** 2).sum(axis=1)) * (grid / 2) ** 2
    pictures = np.zeros((views, size, size), dtype=np.uint8)
    for view in range(views):
        turn = 2 * np.pi * view / views
        x, y = np.cos(turn), np.sin(turn)
        right, nearer = np.array([-y, x, 0.0]), np.array([np.cos(up) * x, np.cos(up) * y, np.sin(up)])
        above = np.cross(nearer, right)
        camera = np.stack([right, -above, nearer])
        corners = np.einsum("vk,ck->vc", mesh.vertices, camera)  # `@` would start threads in every process of a pool
        corners[:, :2] = (corners[:, :2] + 1) * (grid / 2) - 0.5  # samples are at integers
        depth, light = np.full((grid, grid), -np.inf), np.zeros((grid, grid))
        _draw(corners, faces, sizes, depth, light)
        mean = light.reshape(size, SAMPLES, size, SAMPLES).mean(axis=(1, 3))
        pictures[view] = np.where(mean > 0, np.maximum(np.rint(255 * mean), 1), 0)
    return pictures
