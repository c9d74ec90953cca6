"""Meshes: what an OFF file means, where a broken one is broken, and pictures of solids whose look is known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from efvfl.data.mesh import AMBIENT, Mesh, _Words, normalise, read_off, render
from efvfl.errors import DataError

CUBE = """OFF
8 6 12
-1 -1 -1
 1 -1 -1
 1  1 -1
-1  1 -1
-1 -1  1
 1 -1  1
 1  1  1
-1  1  1
4 0 1 2 3
4 4 5 6 7
4 0 1 5 4
4 1 2 6 5
4 2 3 7 6
4 3 0 4 7
"""
TRIANGLE = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"


def cube() -> Mesh:
    return read_off(CUBE.encode())


def wrapped(surface: Callable[[NDArray[np.float64], NDArray[np.float64]], list[NDArray[np.float64]]]) -> Mesh:
    """A closed surface over two angles: 48 steps around, so that it looks the same after every 30 degrees."""
    around, along = 48, 24
    u, v = np.meshgrid(np.arange(around), np.arange(along), indexing="ij")
    points = np.stack(surface(2 * np.pi * u / around, 2 * np.pi * v / along), axis=-1).reshape(-1, 3)

    def at(du: int, dv: int) -> NDArray[np.int64]:
        return ((u + du) % around * along + (v + dv) % along).ravel()

    corners = [np.stack([at(0, 0), at(1, 0), at(1, 1)], 1), np.stack([at(0, 0), at(1, 1), at(0, 1)], 1)]
    return Mesh(points, np.concatenate(corners))


def torus() -> Mesh:
    def surface(u: NDArray[np.float64], v: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return [(1 + 0.4 * np.cos(v)) * np.cos(u), (1 + 0.4 * np.cos(v)) * np.sin(u), 0.4 * np.sin(v)]

    return wrapped(surface)


def sphere() -> Mesh:
    return wrapped(lambda u, v: [np.sin(v / 2) * np.cos(u), np.sin(v / 2) * np.sin(u), np.cos(v / 2) + 0 * u])


def boxes(*pairs: tuple[tuple[float, float, float], tuple[float, float, float]]) -> Mesh:
    """Boxes by their least and greatest corners."""
    unit = cube()
    points = [(np.array(low) + np.array(high)) / 2 + unit.vertices * (np.array(high) - low) / 2 for low, high in pairs]
    return Mesh(np.concatenate(points), np.concatenate([unit.faces + 8 * box for box in range(len(pairs))]))


def l_shape() -> Mesh:
    return boxes(((0, 0, 0), (3, 1, 1)), ((0, 0, 1), (1, 1, 2.5)))


def square(z: float, half: float) -> Mesh:
    """A square that faces up."""
    points = np.array([[-half, -half, z], [half, -half, z], [half, half, z], [-half, half, z]])
    return Mesh(points, np.array([[0, 1, 2], [0, 2, 3]]))


def apart(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(np.abs(a.astype(float) - b).mean())


SOLIDS = {"cube": cube, "sphere": sphere, "torus": torus, "l-shape": l_shape}


@pytest.mark.parametrize(
    "text",
    [
        TRIANGLE,
        TRIANGLE.replace("\n", "\r\n"),
        TRIANGLE.replace("\n", "\r"),
        TRIANGLE.replace("OFF\n", "OFF"),
        TRIANGLE.replace("OFF\n", "OFF "),
        TRIANGLE.replace("OFF\n", "off\n"),
        TRIANGLE.replace("\n", "\n\n  \n\t"),
        TRIANGLE.replace("3 1 0", "3 1"),
        TRIANGLE.strip(),
        "# made by hand\n" + TRIANGLE.replace("\n", " # so it is\n"),
        TRIANGLE.replace("0 1 0\n", "0.0e5 +1. -.0\n"),
        TRIANGLE.replace("3 0 1 2", "3 0 1 2 255 0 0"),
    ],
)
def test_one_mesh_in_many_spellings(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.off"
    path.write_bytes(text.encode())
    for mesh in (read_off(text.encode(), "a.off"), read_off(path)):
        assert mesh.vertices.dtype == np.float64
        assert mesh.faces.dtype == np.int64
        np.testing.assert_array_equal(mesh.vertices, [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
        np.testing.assert_array_equal(mesh.faces, [[0, 1, 2]])


def test_polygons_become_fans() -> None:
    text = "OFF\n6 3 0\n" + "0 0 0\n" * 6 + "3 0 1 2\n5 5 4 3 2 1\n4 0 2 4 5\n"
    faces = read_off(text.encode()).faces
    np.testing.assert_array_equal(faces, [[0, 1, 2], [5, 4, 3], [5, 3, 2], [5, 2, 1], [0, 2, 4], [0, 4, 5]])


def test_a_mesh_may_have_no_faces() -> None:
    mesh = read_off(b"OFF\n1 0 0\n5 5 5\n")
    assert mesh.faces.shape == (0, 3)
    assert not render(normalise(mesh)).any()
    assert not render(normalise(read_off(b"OFF 0 0 0"))).any()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.sampled_from(["%r", "%.6f", "%.20e"]))
def test_numbers_are_the_nearest_floats(numbers: list[float], form: str) -> None:
    words = [form % number for number in numbers]
    np.testing.assert_array_equal(_Words(" ".join(words).encode(), "").values, [float(word) for word in words])


@pytest.mark.parametrize(
    "word", ["", "1_0", "0x10", "1e", "e5", ".", "-", "1-2", "1.2.3", "--1", "1e+", "1,5", "\u0661"]
)
def test_other_words_are_no_numbers(word: str) -> None:
    with pytest.raises(DataError, match=r"line 3"):
        read_off(f"OFF\n1 0 0\n0 0 {word}\n".encode(), "a.off")


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        (TRIANGLE, "", 1, "expected the word OFF, but the file ends here"),
        ("OFF", "PLY", 1, "expected the word OFF, got 'PLY'"),
        ("3 1 0\n", "3\n", 2, "expected the numbers of vertices, faces and edges, got '3'"),
        ("3 1 0\n", "3 x 0\n", 2, "got '3 x 0'"),
        ("3 1 0\n", "3 -1 0\n", 2, "got '3 -1 0'"),
        ("3 1 0\n", "3 1" + 5000 * "0" + "\n", 2, "expected the numbers"),
        ("OFF\n3 1 0\n", "OFFSET\n", 1, "got 'SET'"),
        (TRIANGLE[3:], "\n", 1, "expected the numbers"),
        ("1 0 0\n", "", 5, "vertex 3 of 3 needs 3 numbers, but this line has more or fewer, starting with '3'"),
        ("1 0 0\n", "1 0\n", 4, "vertex 2 of 3 needs 3 numbers"),
        ("1 0 0\n0 1 0\n3 0 1 2\n", "", 3, "vertex 2 of 3 needs 3 numbers, but the file ends here"),
        ("1 0 0\n", "1 zero 0\n", 4, "'zero' is not a finite number"),
        ("1 0 0\n", "1 nan 0\n", 4, "'nan' is not a finite number"),
        ("1 0 0\n", "1 -inf 0\n", 4, "'-inf' is not a finite number"),
        ("1 0 0\n", "1 0 9e999\n", 4, "'9e999' is not a finite number"),
        ("3 0 1 2\n", "", 5, "expected face 1 of 1, but the file ends here"),
        ("3 0 1 2", "2 0 1", 6, "face 1 of 1 needs at least 3 corners, got '2'"),
        ("3 0 1 2", "4 0 1 2", 6, "face 1 of 1 declares '4' corners, but lists fewer"),
        ("3 0 1 2", "1e300 0 1 2", 6, "lists fewer"),
        ("3 0 1 2", "3.5 0 1 2", 6, "needs its number of corners, got '3.5'"),
        ("3 0 1 2", "x 0 1 2", 6, "got 'x'"),
        ("3 0 1 2", "3 0 1 3", 6, "corner '3' of this face is not the index of a vertex, 0 to 2"),
        ("3 0 1 2", "3 0 -1 2", 6, "corner '-1'"),
        ("3 0 1 2", "3 0 1.5 2", 6, "corner '1.5'"),
        ("3 0 1 2", "3 0 1 nan", 6, "corner 'nan'"),
        ("3 0 1 2\n", "3 0 1 2\n\n# more\n3 0 1 2\n", 9, "expected the end of the file after 3 vertices and 1 faces"),
        ("3 1 0\n0 0 0\n", "999999999999 1 0\n# a\n\n0 0 0\n", 8, "vertex 4 of 999999999999 needs 3 numbers"),
    ],
)
def test_a_broken_file_names_its_line(old: str, new: str, line: int, expected: str) -> None:
    assert TRIANGLE.count(old) == 1
    with pytest.raises(DataError) as caught:
        read_off(TRIANGLE.replace(old, new).encode(), "chair_0001.off")
    assert f"chair_0001.off, line {line}: " in str(caught.value)
    assert expected in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the mesh .*none\.off"):
        read_off(tmp_path / "none.off")


@given(st.binary(max_size=200), st.integers(0, len(CUBE)))
def test_any_bytes_are_a_mesh_or_a_data_error(noise: bytes, at: int) -> None:
    for data in (noise, b"OFF" + noise, CUBE[:at].encode() + noise + CUBE[at:].encode()):
        try:
            mesh = read_off(data)
        except DataError:
            continue
        assert mesh.faces.size == 0 or 0 <= mesh.faces.min() <= mesh.faces.max() < len(mesh.vertices)


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300])
def test_normalise_centres_and_scales_what_the_faces_use(scale: float) -> None:
    box = boxes(((1, 2, 3), (5, 4, 4)))
    stray = Mesh(np.concatenate([box.vertices, [[1.7e8, 0, 0]]]) * scale, box.faces)
    points = normalise(stray).vertices[:8]
    np.testing.assert_allclose(points.max(axis=0), -points.min(axis=0))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    np.testing.assert_allclose(points[6] - points[0], np.array([4, 2, 1]) * 2 / np.sqrt(21))


def test_normalise_leaves_a_point_a_point() -> None:
    assert not render(normalise(Mesh(np.full((3, 3), 7.0), np.array([[0, 1, 2]])))).any()


@pytest.mark.parametrize("name", SOLIDS)
def test_every_view_shows_the_solid_inside_the_picture(name: str) -> None:
    pictures = render(normalise(SOLIDS[name]()))
    assert pictures.shape == (12, 32, 32)
    assert pictures.dtype == np.uint8
    assert ((pictures > 0).mean(axis=(1, 2)) > 0.1).all()
    assert not pictures[:, [0, 0, -1, -1], [0, -1, 0, -1]].any()  # the unit sphere leaves the corners free


def test_a_sphere_is_a_disc_from_everywhere() -> None:
    for radius in (1.0, 0.5):
        ball = Mesh(sphere().vertices * radius, sphere().faces)
        pictures = render(ball, size=64)
        covered = (pictures > 0).mean(axis=(1, 2)) * 4
        np.testing.assert_allclose(covered, np.pi * radius**2, rtol=0.06)  # pixels cut by the edge count whole
        assert max(apart(pictures[0], other) for other in pictures) < 1
        middle, edge = pictures[0, 32, 32], pictures[0, 32, 32 - int(31 * radius)]
        assert middle > 250  # faces the light
        assert edge < middle


def test_a_torus_looks_the_same_from_all_around_and_has_a_hole() -> None:
    pictures = render(normalise(torus()))
    assert max(apart(pictures[0], other) for other in pictures) < 1
    assert (render(normalise(torus()), elevation=90)[:, 14:18, 14:18] == 0).all()


def test_a_cube_repeats_every_third_view() -> None:
    pictures = render(normalise(cube()))
    for view in range(12):
        assert apart(pictures[view], pictures[(view + 3) % 12]) < 0.01
        assert apart(pictures[view], pictures[(view + 1) % 12]) > 5


def test_a_solid_without_symmetry_has_twelve_different_views() -> None:
    pictures = render(normalise(l_shape()))
    for view in range(12):
        for other in range(view):
            assert apart(pictures[view], pictures[other]) > 2, f"views {view} and {other}"


@pytest.mark.parametrize("name", SOLIDS)
def test_flipped_faces_look_the_same(name: str) -> None:
    mesh = normalise(SOLIDS[name]())
    flipped = mesh.faces.copy()
    flipped[::2] = flipped[::2, ::-1]
    pictures, others = render(mesh), render(Mesh(mesh.vertices, flipped))
    assert apart(pictures, others) < 0.01


def test_the_camera_goes_from_x_towards_y_with_z_up() -> None:
    # A block on the side of +y: at the right when seen from +x, in front and below when seen from +y and above.
    pictures = render(boxes(((-0.1, 0.5, -0.1), (0.1, 0.7, 0.1)))) > 0
    assert pictures[0, :, 16:].sum() == pictures[0].sum()
    assert pictures[6, :, :16].sum() == pictures[6].sum()
    assert pictures[3, 16:].sum() == pictures[3].sum()
    top = render(boxes(((-0.1, -0.1, 0.5), (0.1, 0.1, 0.7)))) > 0
    assert (top[:, :16].sum(axis=(1, 2)) == top.sum(axis=(1, 2))).all()


def test_near_hides_far_in_either_order() -> None:
    near, far = square(0.5, 0.3), square(-0.5, 0.6)
    tilted = Mesh(far.vertices + far.vertices[:, :1] * [0, 0, 0.5], far.faces)  # darker than the near one
    one = Mesh(np.concatenate([near.vertices, tilted.vertices]), np.concatenate([near.faces, tilted.faces + 4]))
    two = Mesh(one.vertices, one.faces[::-1])
    for mesh in (one, two):
        picture = render(mesh, views=1, elevation=90)[0]
        assert (picture[13:19, 13:19] == 255).all()
        below = round(255 * (AMBIENT + (1 - AMBIENT) / np.sqrt(1.25)))
        assert picture[16, 8] == below
    from_below = render(one, views=1, elevation=-90)[0]
    assert from_below[16, 16] == below


def test_light_falls_off_with_the_angle() -> None:
    for elevation in (90, 60, 30):
        picture = render(square(0, 0.7), views=1, elevation=elevation)[0]
        assert picture[16, 16] == round(255 * (AMBIENT + (1 - AMBIENT) * np.sin(np.radians(elevation))))
    assert not render(square(0, 0.7), elevation=0).any()  # edge-on


def test_neighbours_leave_no_crack() -> None:
    rng = np.random.default_rng(0)
    steps = np.linspace(-0.9, 0.9, 20)
    x, y = np.meshgrid(steps, steps, indexing="ij")
    x[1:-1, 1:-1] += rng.uniform(-0.03, 0.03, (18, 18))
    y[1:-1, 1:-1] += rng.uniform(-0.03, 0.03, (18, 18))
    at = np.arange(400).reshape(20, 20)
    a, b, c, d = at[:-1, :-1].ravel(), at[1:, :-1].ravel(), at[1:, 1:].ravel(), at[:-1, 1:].ravel()
    sheet = Mesh(
        np.stack([x, y, 0 * x], -1).reshape(-1, 3), np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    )
    for picture in render(sheet, elevation=90):
        assert (picture[12:20, 12:20] == 255).all()


def test_what_is_no_triangle_or_outside_is_skipped() -> None:
    mesh = normalise(cube())
    strange = [[5, 5, 5], [1e300, 2e300, -1e300], [np.nan, 0, 0], [np.inf, 0, 0], [0.1, 0.1, 0.1], [0.2, 0.2, 0.2]]
    faces = [[0, 0, 1], [8, 8, 8], [12, 12, 13], [0, 12, 13], [0, 1, 10]]
    with np.errstate(all="ignore"):
        pictures = render(Mesh(np.concatenate([mesh.vertices, strange]), np.concatenate([mesh.faces, faces])))
        render(Mesh(np.array(strange), np.array([[0, 1, 2], [1, 3, 4], [0, 1, 4], [3, 4, 5], [1, 4, 5]])))
    assert apart(pictures, render(mesh)) < 1


def test_other_numbers_of_views_and_pixels() -> None:
    assert render(normalise(cube()), views=3, size=17).shape == (3, 17, 17)
    np.testing.assert_array_equal(render(l_shape(), views=4), render(l_shape(), views=12)[::3])
