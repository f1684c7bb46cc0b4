"""The procedural world, what is held out of it, and the judge that looks at pictures of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from cascade_train.errors import CascadeError
from cascade_train.nano import world
from cascade_train.nano.judge import judge, verdict

DIGEST = """
import hashlib
from cascade_train.nano.world import KINDS, render
whole = hashlib.sha256()
for kind in KINDS:
    for index in range(12):
        pixels, caption = render(kind, 5, index)
        whole.update(pixels.tobytes() + caption.encode())
print(whole.hexdigest())
"""


def test_pictures_are_a_function_of_kind_seed_and_index():
    """The same in another process, whatever was drawn before."""
    other = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True)
    whole = hashlib.sha256()
    world.render("rich", 1, 3)
    for kind in world.KINDS:
        for index in range(12):
            pixels, caption = world.render(kind, 5, index)
            assert pixels.shape == (64, 64, 3) and pixels.dtype == np.uint8
            whole.update(pixels.tobytes() + caption.encode())
    assert whole.hexdigest() == other.stdout.strip()
    assert not np.array_equal(world.render("captioned", 5, 0)[0], world.render("captioned", 6, 0)[0])


def test_held_out_combinations_are_never_trained_on():
    def combinations(kind: str, count: int) -> set[tuple[str, str, str]]:
        scenes = (world.scene(kind, 3, index)[0] for index in range(count))
        return {(scene.shape, scene.colour, scene.background) for scene in scenes}

    shown, tested = combinations("captioned", 4000), combinations("held-out", 400)
    every = {
        (shape, colour, background)
        for shape in world.SHAPES
        for colour in world.COLOURS
        for background in world.BACKGROUNDS
    }
    assert not shown & tested
    assert all(world.held_out(*names) for names in tested)
    assert shown | tested == every
    assert not combinations("several", 4000) & tested
    assert not combinations("threes", 4000) & tested
    assert 0.05 < len(tested) / len(every) < 0.15


def test_captions_say_what_is_drawn():
    phrasings = set()
    for index in range(300):
        scene, caption = world.scene("captioned", 8, index)
        wanted = world.parse(caption)
        assert (wanted.shape, wanted.colour, wanted.background, wanted.count) == (
            scene.shape,
            scene.colour,
            scene.background,
            scene.count,
        )
        assert wanted.size in (None, scene.size) and wanted.place in (None, scene.place)
        phrasings.add(caption.replace(scene.colour, "C").split()[0])
        low, high = world.RADII[scene.size]
        assert low <= scene.radius <= high and len(scene.centres) == scene.count
    assert len(phrasings) >= 4


def test_several_are_two_or_three_as_often():
    counts = [world.scene("several", 8, index)[0].count for index in range(400)]
    assert set(counts) == {2, 3} and 160 < counts.count(2) < 240
    threes = [world.scene("threes", 8, index)[0].count for index in range(400)]
    assert set(threes) == {2, 3} and 230 < threes.count(3) < 300


def test_fours_are_what_no_caption_asks_for():
    """Four shapes that do not touch, without a caption; no other kind shows as many."""
    for index in range(40):
        picture, caption = world.render("fours", 3, index)
        assert caption == "" and judge(picture).count == 4
    with pytest.raises(CascadeError, match="need not be scenes"):
        world.scene("fours", 3, 0)


def test_usual_counts():
    usual = [world.scene("captioned", 8, index)[0].count for index in range(400)]
    assert 200 < usual.count(1) < 280


def test_rich_pictures_are_richer():
    """Many of them show more colours than the blends of a scene's two."""
    pictures = [world.render("rich", 2, index)[0] for index in range(40)]
    colours = [len(np.unique(picture.reshape(-1, 3), axis=0)) for picture in pictures]
    assert sum(count > 80 for count in colours) >= 10
    assert any(world.render("rich", 2, index)[1] for index in range(10))


def test_unknown_kinds_and_captions_are_refused():
    with pytest.raises(CascadeError, match="no kind 'poor'"):
        world.render("poor", 0, 0)
    with pytest.raises(CascadeError, match="no caption of the world"):
        world.parse("a cat")


def test_judge_knows_real_pictures_and_notices_what_is_wrong():
    right = {"shape": 0, "all": 0}
    for index in range(60):
        scene, caption = world.scene("held-out", 21, index)
        answer = verdict(judge(world.draw_scene(scene)), world.parse(caption))
        right = {name: count + answer[name] for name, count in right.items()}
    assert right["shape"] >= 58 and right["all"] >= 56
    scene, _ = world.scene("captioned", 21, 0)
    picture = judge(world.draw_scene(scene))
    other = next(shape for shape in world.SHAPES if shape != scene.shape)
    paint = "red" if scene.colour != "red" else "blue"
    said = world.parse(f"a {paint} {other} on a {scene.background} background")
    answer = verdict(picture, said)
    assert answer["background"] and not (answer["shape"] or answer["colour"] or answer["all"])
    empty = judge(np.full((64, 64, 3), world.BACKGROUNDS["tan"], np.uint8))
    assert empty.count == 0 and not verdict(empty, said)["all"]
