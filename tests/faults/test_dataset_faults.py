"""Bad data sets: what a user gets to read, and what still runs."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from llm_perf_opt.config.schema import DatasetConfig, SamplingConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.datasets.omnidocbench import OmniDocBench
from llm_perf_opt.workloads.datasets.sampling import inputs_document


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (40, 60), **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path, **options)
    return path


def noisy(path: Path) -> Path:
    """An image whose compressed data is long enough to be cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((300, 300), 90).convert("RGB").save(path)
    return path


def read(root: Path | None, filelist: Path | None = None, **values: Any) -> tuple[list[Sample], OmniDocBench]:
    dataset = OmniDocBench(
        DatasetConfig(
            root=str(root) if root else None, subset_filelist=str(filelist) if filelist else None, **values
        )
    )
    return list(dataset.samples()), dataset


def filelist(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "list.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_missing_root_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist") as caught:
        read(tmp_path / "nowhere")
    assert caught.value.exit_code == 3
    assert "generated pages" in str(caught.value)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        read(picture(tmp_path / "a.png"))


def test_a_root_without_images_names_the_patterns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"images/\*\.png"):
        read(tmp_path)


@pytest.mark.parametrize("pattern", ["/etc/*", "../*.png"])
def test_patterns_stay_below_the_root(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"below dataset\.root"):
        read(tmp_path, fallback_patterns=[pattern])


def test_list_entries_absolute_relative_bare_comments_blank_lines(tmp_path: Path) -> None:
    root = tmp_path / "my data, v=1 é"
    picture(root / "images" / "bare.png")
    picture(root / "sub" / "relative one.png")
    outside = picture(tmp_path / "outside.png")
    lines = [
        "\ufeff# comment",
        "",
        "bare.png\r",
        "  sub/relative one.png  ",
        str(outside),
        "images/../images/bare.png",
    ]
    samples, dataset = read(root, filelist(tmp_path, "\n".join(lines)))
    assert [sample.id for sample in samples] == ["bare.png", "relative one.png", "outside.png"]
    assert [text for text in dataset.problems() if "repeats line 3" in text], dataset.problems()


def test_a_half_wrong_list_names_the_lines(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "good.png")
    content = "good.png\n# note\nmissing.png\n\n../escape.png\n/nowhere/x.png\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, filelist(tmp_path, content))
    assert caught.value.data["lines"] == [3, 5, 6]
    message = str(caught.value)
    assert "3 of 4 entries" in message
    assert "line 3: missing.png (not found)" in message
    assert "line 5: ../escape.png (leaves dataset.root" in message


def test_a_long_wrong_list_stays_readable(tmp_path: Path) -> None:
    content = "\n".join(f"{number}.png" for number in range(500))
    with pytest.raises(InputError, match="and 490 more") as caught:
        read(tmp_path, filelist(tmp_path, content))
    assert len(str(caught.value).splitlines()) < 15
    assert len(caught.value.data["lines"]) == 500


@pytest.mark.parametrize("content", ["", "\n\n", "# only comments\n"])
def test_an_empty_list_is_an_error(tmp_path: Path, content: str) -> None:
    picture(tmp_path / "images" / "a.png")
    with pytest.raises(InputError, match="names no files"):
        read(tmp_path, filelist(tmp_path, content))


def test_a_missing_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="subset_filelist not found"):
        read(tmp_path, tmp_path / "nowhere.txt")


def test_a_link_out_of_the_root_is_fine_but_dotdot_is_not(tmp_path: Path) -> None:
    store = picture(tmp_path / "store" / "blob.png")
    root = tmp_path / "root"
    (root / "images").mkdir(parents=True)
    (root / "images" / "linked.png").symlink_to(store)
    assert len(read(root, filelist(tmp_path, "linked.png\n"))[0]) == 1
    with pytest.raises(InputError, match=r"leaves dataset\.root"):
        read(root, filelist(tmp_path, "images/../../store/blob.png\n"))


def test_a_list_alone_needs_absolute_names(tmp_path: Path) -> None:
    image = picture(tmp_path / "a.png")
    assert [sample.path for sample in read(None, filelist(tmp_path, f"{image}\n"))[0]] == [image]
    with pytest.raises(InputError, match=r"\ba\.png\b.*dataset\.root"):
        read(None, filelist(tmp_path, "a.png\n"))


@pytest.mark.skipif(sys.platform == "darwin", reason="this file system takes UTF-8 names only")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    name = os.fsencode(folder) + b"/caf\xe9.png"
    picture(folder / "x.png").rename(Path(os.fsdecode(name)))
    for listed in (None, filelist(tmp_path, b"caf\xe9.png\n")):
        (sample,), dataset = read(tmp_path, listed)
        assert sample.id == r"caf\xe9.png"
        document = inputs_document([sample], dataset.problems())
        assert document["samples"][0]["path"].encode("utf-8").endswith(rb"caf\xe9.png")


def damage(tmp_path: Path) -> dict[str, str]:
    """Write one file per kind of damage; return name → part of the reason."""
    folder = tmp_path / "images"
    png, jpeg = noisy(folder / "cut.png"), noisy(folder / "cut.jpg")
    png.write_bytes(png.read_bytes()[:-5000])
    jpeg.write_bytes(jpeg.read_bytes()[: jpeg.stat().st_size // 2])
    flipped = bytearray(noisy(folder / "flipped.png").read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    (folder / "flipped.png").write_bytes(flipped)
    (folder / "empty.png").write_bytes(b"")
    (folder / "pointer.png").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (folder / "text.jpg").write_text("not an image")
    (folder / "zero.gif").write_bytes(b"GIF89a" + bytes(7) + b"," + bytes(9) + b"\x02\x00;")
    return {
        "cut.png": "", "cut.jpg": "truncated", "flipped.png": "", "empty.png": "empty", "pointer.png": "not an image",
        "text.jpg": "not an image", "zero.gif": "",
    }  # fmt: skip


def test_damaged_images_are_left_out_counted_and_named(tmp_path: Path) -> None:
    reasons = damage(tmp_path)
    picture(tmp_path / "images" / "good.png")
    names = [*reasons, "good.png"]
    samples, dataset = read(tmp_path, filelist(tmp_path, "\n".join(names)))
    assert [sample.id for sample in samples] == ["good.png"]
    assert len(dataset.problems()) == len(reasons)
    for name, reason in reasons.items():
        (problem,) = (text for text in dataset.problems() if text.startswith(f"{name}: left out"))
        assert reason in problem


def test_damaged_images_do_not_use_up_the_samples_of_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"")
    for name in "bcd":
        picture(tmp_path / "images" / f"{name}.png")
    samples, _ = read(tmp_path, sampling=SamplingConfig(num_samples_per_epoch=2, num_epochs=2))
    assert [sample.id for sample in samples] == ["b.png", "c.png", "b.png@epoch2", "c.png@epoch2"]


def test_all_damaged_is_an_error_that_names_them(tmp_path: Path) -> None:
    reasons = damage(tmp_path)
    with pytest.raises(InputError, match=f"none of the {len(reasons)} images") as caught:
        read(tmp_path, filelist(tmp_path, "\n".join(reasons)))
    assert "cut.png" in str(caught.value)


def test_an_unreadable_image_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "images" / "good.png")
    picture(tmp_path / "images" / "secret.png")
    really_open = Image.open

    def guarded(path: Path, *arguments: Any, **options: Any) -> Any:
        # Root may read everything, so the refusal is acted.
        if Path(path).name == "secret.png":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(Image, "open", guarded)
    samples, dataset = read(tmp_path)
    assert [sample.id for sample in samples] == ["good.png"]
    assert "secret.png" in dataset.problems()[0]


@pytest.mark.parametrize(
    ("name", "mode"),
    [("cmyk.jpg", "CMYK"), ("deep.png", "I;16"), ("grey.png", "L"), ("alpha.png", "RGBA"), ("bits.png", "1")],
)
def test_unusual_but_valid_images_are_used(tmp_path: Path, name: str, mode: str) -> None:
    picture(tmp_path / "images" / name, mode)
    samples, dataset = read(tmp_path)
    assert [sample.id for sample in samples] == [name]
    assert dataset.problems() == ()


def test_an_animation_counts_once(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 20), color) for color in ("red", "green", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    samples, _ = read(tmp_path, fallback_patterns=["*.gif"])
    assert [sample.id for sample in samples] == ["moving.gif"]


def test_a_hundred_megapixels_are_read_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    picture(tmp_path / "images" / "poster.png", "1", (10_000, 10_000))
    samples, _ = read(tmp_path)
    assert samples[0].extra["width"] == 10_000
    assert not recwarn.list


def test_a_decompression_bomb_is_left_out(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "good.png")
    picture(tmp_path / "images" / "bomb.png", "1", (20_000, 10_000))
    samples, dataset = read(tmp_path)
    assert [sample.id for sample in samples] == ["good.png"]
    assert "more pixels" in dataset.problems()[0]


@pytest.mark.parametrize("content", ["{", "{}", "[" * 100_000, ""])
def test_broken_annotations_cost_the_score_not_the_run(tmp_path: Path, content: str) -> None:
    picture(tmp_path / "images" / "a.png")
    (tmp_path / "OmniDocBench.json").write_text(content)
    samples, dataset = read(tmp_path)
    assert samples[0].reference is None
    assert "not scored" in dataset.problems()[0]
