"""Files are written whole, through links, and nothing but a regular file is replaced."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cxlemu.files import check_writable, open_file, write_atomically
from tests.helpers.tiers import PATIENT_S

NULL = os.makedev(1, 3)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "new", b"data")
    assert (tmp_path / "new").read_bytes() == b"data"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert names(tmp_path) == ["new", "usual"]


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"something longer")
    path.chmod(0o600)
    before = path.stat().st_ino
    write_atomically(path, b"data")
    assert path.read_bytes() == b"data"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != before  # renamed over it, not written into it
    assert names(tmp_path) == ["old"]


@pytest.mark.parametrize("there", [True, False], ids=["file", "dangling"])
def test_links_are_followed_and_stay(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    if there:
        target.write_bytes(b"old")
    (tmp_path / "inner").symlink_to("folder/target")
    (tmp_path / "link").symlink_to(tmp_path / "inner")
    check_writable(tmp_path / "link")
    assert target.exists() == there
    write_atomically(tmp_path / "link", b"data")
    assert target.read_bytes() == b"data"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "inner").is_symlink()
    assert names(tmp_path / "folder") == ["target"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (tmp_path / "pipe", tmp_path / "link"):
            check_writable(path)
            write_atomically(path, b"data")
            assert os.read(reader, 100) == b"data"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == ["link", "pipe"]


def test_a_pipe_without_a_reader_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")  # a reader may still come
    with pytest.raises(OSError, match="No such device or address"):
        write_atomically(tmp_path / "pipe", b"data")


def test_more_than_a_pipe_holds_arrives_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)  # also a writer, so that reads wait for the first byte
    with os.fdopen(reader, "rb") as pipe, ThreadPoolExecutor() as pool:
        arrived = pool.submit(pipe.read, len(data))
        write_atomically(tmp_path / "pipe", data)
        assert arrived.result(timeout=PATIENT_S) == data


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, NULL)
        (tmp_path / "null").open("wb").close()
    except PermissionError:
        pytest.skip("only root makes devices")
    (tmp_path / "link").symlink_to("null")
    for path in (tmp_path / "null", tmp_path / "link"):
        check_writable(path)
        write_atomically(path, b"data")
    assert (tmp_path / "null").is_char_device()
    assert (tmp_path / "null").stat().st_rdev == NULL
    assert names(tmp_path) == ["link", "null"]


def test_the_file_that_stdout_goes_to_is_appended_to(tmp_path: Path) -> None:
    """As a shell has it with ``> log``: what was printed before and after stays."""
    code = (
        "import os; from pathlib import Path; from cxlemu.files import write_atomically\n"
        "os.write(1, b'before '); write_atomically(Path('/dev/stdout'), b'data'); os.write(2, b'after')"
    )
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True, timeout=PATIENT_S)
    assert (tmp_path / "log").read_bytes() == b"before data"
    assert names(tmp_path) == ["log"]


@pytest.mark.parametrize("name", ["no/file", "x" * 256, "folder", "loop", "file/below", "a\0b"])
def test_what_cannot_be_written_is_found_before_and_changes_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "loop").symlink_to("loop")
    before = names(tmp_path)
    for attempt in (check_writable, lambda path: write_atomically(path, b"data")):
        with pytest.raises(OSError) as error:
            attempt(tmp_path / name)
        assert error.value.strerror
    assert names(tmp_path) == before
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_name_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    check_writable(path)
    assert names(tmp_path) == []
    write_atomically(path, b"data")
    assert path.read_bytes() == b"data"


def test_a_file_that_is_read_only_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    monkeypatch.setattr("cxlemu.files.os.access", lambda path, mode: False)  # root may write everything
    with pytest.raises(OSError, match="Permission denied"):
        write_atomically(tmp_path / "kept", b"data")
    assert (tmp_path / "kept").read_bytes() == b"old"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cxlemu.files.os.fchmod", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "old", b"data")
    assert (tmp_path / "old").read_bytes() == b"old"
    assert names(tmp_path) == ["old"]


def test_a_fifo_that_takes_a_files_place_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"data")
    opens = os.open
    monkeypatch.setattr("cxlemu.files.os.open", lambda path, flags: opens(tmp_path / "fifo", flags))
    with pytest.raises(OSError, match="a FIFO, not a regular file"):
        open_file(tmp_path / "file")
