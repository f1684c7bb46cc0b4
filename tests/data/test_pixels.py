"""Pictures come out upright, in sRGB, eight bits, whatever they went in as; resizing is an area mean."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from cascade_train.data.dataset import open_dataset
from cascade_train.data.pixels import BadImage, area_resize, decode, fit
from cascade_train.data.sources import folder_dataset
from cascade_train.data.spec import BucketSpec, CaptionSpec
from cascade_train.host.headless import HeadlessHost, headless_folders

from .conftest import encoded, photo


def exact_area(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """The mean of each target pixel's area, by integrating the picture as a step function (float64)."""

    def weights(source: int, target: int) -> np.ndarray:
        edges = np.linspace(0, source, target + 1)
        low, high = np.arange(source), np.arange(source) + 1
        overlap = np.minimum(edges[1:, None], high) - np.maximum(edges[:-1, None], low)
        return np.clip(overlap, 0, None) / (source / target)

    rows, columns = weights(pixels.shape[0], height), weights(pixels.shape[1], width)
    return np.einsum("yr,xc,rck->yxk", rows, columns, pixels.astype(np.float64), optimize=True)


@pytest.mark.parametrize("size", [(200, 150), (137, 91), (96, 72), (61, 47), (320, 100)])
def test_reducing_is_within_two_of_an_exact_area_filter(size: tuple[int, int]) -> None:
    pixels = np.asarray(photo(391, 293, 3))
    grain = np.random.default_rng(1).normal(0, 12, pixels.shape)
    pixels = np.clip(pixels + grain, 0, 255).astype(np.uint8)
    out = area_resize(pixels, *size)
    assert out.shape == (size[1], size[0], 3)
    assert np.abs(out - exact_area(pixels, *size)).mean() < 2.0


def test_machines_without_torchs_quick_code_reduce_equally_well(tmp_path: Path) -> None:
    """The other way to reduce, in a process whose torch was told that the processor has no AVX."""
    pixels = np.asarray(photo(391, 293, 3))
    np.save(tmp_path / "in.npy", pixels)
    code = (
        "import sys, numpy as np; from cascade_train.data import pixels as p; print(p.reducer()); "
        "np.save(sys.argv[2], p.area_resize(np.load(sys.argv[1]), 211, 157))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "in.npy"), str(tmp_path / "out.npy")],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "opencv"
    there, here = np.load(tmp_path / "out.npy"), area_resize(pixels, 211, 157)
    exact = exact_area(pixels, 211, 157)
    for out in (there, here):
        assert out.shape == exact.shape and np.abs(out - exact).mean() < 1.0
    assert np.abs(there.astype(int) - here).mean() < 1.0


@pytest.mark.parametrize("need", [(200, 150), (100, 75), (50, 40)])
def test_a_jpeg_decoded_at_a_fraction_of_its_size_is_the_same_picture(need: tuple[int, int]) -> None:
    data = encoded(photo(800, 600, 5), "JPEG", quality=92)
    whole = decode(data)
    reduced = decode(data, need=need)
    assert reduced.shape[0] < whole.shape[0] and reduced.shape[0] >= need[1] and reduced.shape[1] >= need[0]
    exact = exact_area(whole, *need)
    assert np.abs(area_resize(reduced, *need) - exact).mean() < 2.0


def test_every_orientation_comes_out_upright() -> None:
    upright = np.asarray(photo(60, 40, 2))
    for orientation in range(1, 9):
        stored = Image.fromarray(upright)
        for step in {
            2: ("FLIP_LEFT_RIGHT",),
            3: ("ROTATE_180",),
            4: ("FLIP_TOP_BOTTOM",),
            5: ("TRANSPOSE",),
            6: ("ROTATE_90",),
            7: ("TRANSVERSE",),
            8: ("ROTATE_270",),
        }.get(orientation, ()):
            stored = stored.transpose(Image.Transpose[step])
        exif = Image.Exif()
        exif[0x0112] = orientation
        for kind, options in (("PNG", {}), ("JPEG", {"quality": 98, "subsampling": 0})):
            out = decode(encoded(stored, kind, exif=exif.tobytes(), **options))
            assert out.shape == upright.shape, (kind, orientation)
            assert np.abs(out.astype(int) - upright).mean() < 3, (kind, orientation)


def test_transparency_is_laid_on_the_chosen_colour() -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 4, 8))
    image.putpixel((7, 7), (0, 255, 0, 128))
    out = decode(encoded(image), background=(10, 20, 30))
    assert tuple(out[0, 0]) == (0, 0, 255) and tuple(out[0, 7]) == (10, 20, 30)
    assert np.abs(out[7, 7].astype(int) - (5, 138, 15)).max() <= 1

    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([200, 0, 0, 0, 200, 0])
    palette.putpixel((1, 1), 1)
    out = decode(encoded(palette, transparency=0), background=(1, 2, 3))
    assert tuple(out[0, 0]) == (1, 2, 3) and tuple(out[1, 1]) == (0, 200, 0)

    gray = Image.merge("LA", (Image.new("L", (4, 4), 100), Image.new("L", (4, 4), 0)))
    assert tuple(decode(encoded(gray), background=(9, 8, 7))[0, 0]) == (9, 8, 7)


def test_sixteen_bits_one_bit_palette_and_gray() -> None:
    ramp = (np.arange(256 * 4).reshape(4, 256) % 256 * 257).astype(np.uint16)
    out = decode(encoded(Image.fromarray(ramp)))
    assert out.shape == (4, 256, 3) and (out[0, :, 0] == np.arange(256)).all(), (
        "65535 is white, not a wrap-around"
    )

    assert decode(encoded(Image.new("1", (4, 4), 1))).min() == 255
    palette = Image.new("P", (4, 4), 3)
    palette.putpalette([0] * 9 + [12, 34, 56])
    assert tuple(decode(encoded(palette))[0, 0]) == (12, 34, 56)
    assert tuple(decode(encoded(Image.new("L", (4, 4), 77), "JPEG", quality=95))[0, 0]) == (77, 77, 77)


def test_cmyk_has_its_own_colours() -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = decode(encoded(image, "JPEG", quality=95))[8, 8]
    assert red[0] > 200 and red[1] < 60 and red[2] < 60


def test_a_wide_gamut_profile_is_converted_to_srgb() -> None:
    xyz = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = photo(32, 24, 8)
    assert (decode(encoded(image, icc_profile=srgb)) == np.asarray(image)).all(), "sRGB stays"
    assert (decode(encoded(image, icc_profile=xyz.tobytes())) == np.asarray(image)).all(), (
        "no RGB profile: left"
    )
    assert (decode(encoded(image, icc_profile=b"rubbish")) == np.asarray(image)).all()
    # A profile whose red and blue primaries are exchanged: sRGB's own bytes with the two tags swapped.
    swapped = bytearray(srgb)
    entries = {
        bytes(srgb[128 + 4 + 12 * i : 128 + 8 + 12 * i]): 128 + 4 + 12 * i
        for i in range(int.from_bytes(srgb[128:132], "big"))
    }
    red, blue = entries[b"rXYZ"], entries[b"bXYZ"]
    swapped[red + 4 : red + 12], swapped[blue + 4 : blue + 12] = (
        srgb[blue + 4 : blue + 12],
        srgb[red + 4 : red + 12],
    )
    for kind, options in (("PNG", {}), ("JPEG", {"quality": 98, "subsampling": 0})):
        out = decode(encoded(image, kind, icc_profile=bytes(swapped), **options))
        assert np.abs(out.astype(int) - np.asarray(image)[:, :, ::-1]).mean() < 4, kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "AVIF", "TIFF"])
def test_every_format_opens(kind: str) -> None:
    image = photo(64, 48, 4)
    if kind == "AVIF":
        pytest.importorskip("PIL._avif")
    out = decode(encoded(image, kind))
    assert out.dtype == np.uint8 and out.shape == (48, 64, 3)
    assert np.abs(out.astype(int) - np.asarray(image)).mean() < 15


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert tuple(decode(out.getvalue())[0, 0]) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_half_a_file_is_bad_and_never_a_half_grey_picture(kind: str) -> None:
    data = encoded(photo(200, 150, 9), kind)
    with pytest.raises(BadImage):
        decode(data[: len(data) // 2])


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = bytearray(encoded(Image.new("L", (8, 8))))
    bomb[16:24] = (60_000).to_bytes(4, "big") + (60_000).to_bytes(4, "big")
    import zlib

    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    with pytest.raises(BadImage, match="bomb"):
        decode(bytes(bomb))


def test_the_ways_to_fit() -> None:
    pixels = np.zeros((60, 120, 3), dtype=np.uint8)
    pixels[:, :60] = (255, 0, 0)
    pixels[:, 60:] = (0, 0, 255)
    left = fit(pixels, 30, 30, (0.0, 0.5))
    right = fit(pixels, 30, 30, (1.0, 0.5))
    assert (left == (255, 0, 0)).all() and (right == (0, 0, 255)).all()
    centre = fit(pixels, 30, 30, (0.5, 0.5))
    assert (centre[:, 0] == (255, 0, 0)).all() and (centre[:, -1] == (0, 0, 255)).all()
    assert (fit(pixels, 30, 30, (0.0, 0.0), "stretch")[0, 14:16] == [[255, 0, 0], [0, 0, 255]]).all()
    padded = fit(pixels, 30, 30, resize="pad", background=(1, 2, 3))
    assert tuple(padded[0, 0]) == (1, 2, 3) and tuple(padded[15, 0]) == (255, 0, 0)
    assert (fit(pixels, 60, 60, (0.0, 0.0), "none") == pixels[:, :60]).all(), "none keeps the scale"
    assert fit(pixels, 240, 240, (0.5, 0.5), "none").shape == (240, 240, 3), "too small is enlarged"


def test_load_pictures_shows_what_training_sees(tmp_path: Path) -> None:
    """Turned by EXIF, transparent, 16 bits deep, large: the node and the loader give the same pixels."""
    from cascade_train.sampling.pictures import load_pictures

    inside = tmp_path / "in" / "set"
    inside.mkdir(parents=True)
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(400, 300, 1).save(inside / "a.jpg", quality=95, exif=turned)
    clear = photo(96, 80, 2).convert("RGBA")
    clear.paste((0, 0, 0, 0), (0, 0, 48, 80))
    clear.save(inside / "b.png")
    Image.fromarray(np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)).save(inside / "c.png")
    photo(90, 90, 3).save(inside / "d.tif")
    host = HeadlessHost(headless_folders(tmp_path / "out", tmp_path / "in"), "cpu")
    spec = BucketSpec(resolutions=((72, 96),), crop="center")
    dataset = folder_dataset("set", recursive=False, host=host)
    dataset = replace(dataset, buckets=spec, captions=CaptionSpec(source="file name"))
    opened = open_dataset(dataset, multiple=8, native_side=64, host=host)
    trained = {
        loaded.key: loaded.pixels for n in range(4) for loaded in [opened.load(opened.draws(0, n, 1)[0])]
    }
    pictures = load_pictures("set", 0, 9, 72, 96, host).numpy()
    assert pictures.dtype == np.float32 and len(pictures) == len(trained) == 4
    for key, picture in zip(sorted(trained), pictures):
        assert (np.round(picture * 255).astype(np.uint8) == trained[key]).all(), key
    assert (pictures[1, :, :20] == 1).all(), "white where it is transparent"
