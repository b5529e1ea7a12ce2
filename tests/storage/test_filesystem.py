"""The door to the disk: what the real one and the forgetful fake have in common, and what only the fake can show."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.fakes import ERRNOS, FakeFile, FakeFileSystem, Inode, Write, eio, injected
from weft.storage.filesystem import DirectoryInUse, FileSystem, OSFileSystem, replace_private_file, write_atomically


@pytest.fixture(params=["real", "fake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file system and an empty directory in it."""
    if request.param == "real":
        return OSFileSystem(), str(tmp_path)
    fake = FakeFileSystem()
    fake.make_directory("/d")
    return fake, "/d"


def test_files_are_written_read_and_resized(place: tuple[FileSystem, str]) -> None:
    filesystem, directory = place
    file = filesystem.create(f"{directory}/a")
    file.write_at(3, b"hello")
    assert file.read_at(0, 100) == b"\0\0\0hello"
    assert file.read_at(4, 2) == b"el"
    assert file.read_at(50, 2) == b""
    file.allocate(20)
    assert file.size() == 20
    assert file.read_at(8, 100) == bytes(12)
    file.allocate(10)
    assert file.size() == 20
    file.truncate(5)
    file.truncate(7)
    file.sync()
    assert file.read_at(0, 100) == b"\0\0\0he\0\0"
    file.close()
    file.close()
    assert filesystem.size(f"{directory}/a") == 7
    assert filesystem.read(f"{directory}/a") == b"\0\0\0he\0\0"


def test_names_follow_posix(place: tuple[FileSystem, str]) -> None:
    filesystem, directory = place
    a, b, c = (f"{directory}/{name}" for name in "abc")
    with pytest.raises(FileNotFoundError):
        filesystem.open(a)
    filesystem.create(a).close()
    with pytest.raises(FileExistsError):
        filesystem.create(a)
    filesystem.link(a, b)
    with pytest.raises(FileExistsError):
        filesystem.link(a, b)
    file = filesystem.open(a)
    file.write_at(0, b"one file, two names")
    file.close()
    assert filesystem.read(b) == b"one file, two names"
    filesystem.rename(b, c)
    filesystem.remove(a)
    filesystem.sync_directory(directory)
    assert filesystem.list_names(directory) == ["c"]
    assert filesystem.exists(c)
    assert not filesystem.exists(a)
    with pytest.raises(FileNotFoundError):
        filesystem.remove(a)


def test_directories_are_made_with_their_parents(place: tuple[FileSystem, str]) -> None:
    filesystem, directory = place
    deep = f"{directory}/x/y/z"
    assert not filesystem.is_directory(deep)
    filesystem.make_directory(deep)
    filesystem.make_directory(deep)
    assert filesystem.is_directory(deep)
    assert filesystem.list_names(directory) == ["x"]
    assert filesystem.free_bytes(deep) > 0
    with pytest.raises(FileNotFoundError):
        filesystem.list_names(f"{directory}/none")


class WatchedFileSystem(OSFileSystem):
    """Tells which directories were made durable, and may be interrupted at it."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.interrupted = False

    def sync_directory(self, path: str) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        super().sync_directory(path)
        self.synced.append(path)


def test_a_directory_that_an_interrupted_process_made_is_made_durable_by_the_next(tmp_path: Path) -> None:
    filesystem = WatchedFileSystem()
    path = tmp_path / "data" / "log"
    filesystem.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        filesystem.make_directory(str(path))
    filesystem.interrupted = False
    filesystem.make_directory(str(path))
    assert path.is_dir()
    assert {str(tmp_path), str(tmp_path / "data")} <= set(filesystem.synced)
    filesystem.synced.clear()
    filesystem.make_directory(str(path))
    assert {str(tmp_path), str(tmp_path / "data")} <= set(filesystem.synced), "nothing says who made it"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS])
def test_folders_above_that_are_read_only_keep_no_log_from_opening(tmp_path: Path, number: int) -> None:
    """A data folder mounted below a root that is read-only, or another user's: it has made no directory there."""

    class ReadOnlyAbove(OSFileSystem):
        def sync_directory(self, path: str) -> None:
            if path == str(tmp_path):
                raise OSError(number, os.strerror(number), path)
            super().sync_directory(path)

    (tmp_path / "data").mkdir()
    filesystem = ReadOnlyAbove()
    filesystem.make_directory(str(tmp_path / "data" / "log"))
    filesystem.make_directory(str(tmp_path / "data" / "log"))
    assert (tmp_path / "data" / "log").is_dir()
    with pytest.raises(OSError, match=os.strerror(number)):
        filesystem.make_directory(str(tmp_path / "new"))


def test_a_directory_is_locked_once(place: tuple[FileSystem, str]) -> None:
    filesystem, directory = place
    lock = filesystem.lock(directory)
    with pytest.raises(DirectoryInUse, match="in use by another process"):
        filesystem.lock(directory)
    lock.close()
    filesystem.lock(directory).close()


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    lock = OSFileSystem().lock(str(tmp_path))
    program = f"from weft.storage.filesystem import OSFileSystem\nOSFileSystem().lock({str(tmp_path)!r})"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "DirectoryInUse" in outcome.stderr
    lock.close()
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_write_atomically_replaces_content(place: tuple[FileSystem, str]) -> None:
    filesystem, directory = place
    for content in (b"one", b"a longer two", b""):
        write_atomically(filesystem, f"{directory}/a", content)
        assert filesystem.read(f"{directory}/a") == content
    assert filesystem.list_names(directory) == ["a"]


@pytest.mark.parametrize("failing", range(1, 7))
def test_write_atomically_leaves_old_or_new_after_any_crash(failing: int) -> None:
    for seed in range(20):
        disk = FakeFileSystem()
        disk.make_directory("/d")
        write_atomically(disk, "/d/a", b"old" * 1000)
        remaining = [failing]

        def fail(call: str, path: str, remaining: list[int] = remaining) -> OSError | None:
            remaining[0] -= 1
            return None if remaining[0] else eio()

        disk.fail = fail
        try:
            write_atomically(disk, "/d/a", b"new!" * 1000)
            written = True
        except OSError:
            written = False
        found = disk.power_cut(random.Random(seed)).read("/d/a")
        assert found in (b"old" * 1000, b"new!" * 1000)
        assert not written or found == b"new!" * 1000


def test_the_fake_forgets_what_was_not_synced() -> None:
    disk = FakeFileSystem()
    disk.make_directory("/d")
    file = disk.create("/d/a")
    file.write_at(0, b"a" * 2000)
    file.sync()
    outcomes = {tuple(disk.power_cut(random.Random(seed)).list_names("/d")) for seed in range(20)}
    assert outcomes == {(), ("a",)}
    disk.sync_directory("/d")
    file.write_at(0, b"b" * 2000)
    contents = [disk.power_cut(random.Random(seed)).read("/d/a") for seed in range(60)]
    assert b"a" * 2000 in contents
    assert b"b" * 2000 in contents
    torn = [content for content in contents if b"a" in content and b"b" in content]
    assert torn
    assert all(content[at] == content[at - at % 512] for content in torn for at in range(2000))
    file.sync()
    assert disk.power_cut(random.Random(0)).read("/d/a") == b"b" * 2000


def test_the_fake_never_makes_durable_what_a_failed_sync_dropped() -> None:
    disk = FakeFileSystem()
    disk.make_directory("/d")
    file = disk.create("/d/a")
    disk.sync_directory("/d")
    file.write_at(0, b"x")
    disk.fail = lambda call, path: eio() if call == "sync" else None
    with pytest.raises(OSError, match="injected"):
        file.sync()
    disk.fail = lambda call, path: None
    file.sync()
    assert disk.read("/d/a") == b"x"
    assert disk.power_cut(random.Random(0)).read("/d/a") == b""


# --- private file


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
SERVICE = 54_321


def facts(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_uid, stat.st_gid, stat.st_mode & 0o777


@pytest.fixture
def generous_mask() -> None:
    os.umask(0o022)


@pytest.mark.usefixtures("generous_mask")
def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    replace_private_file(str(tmp_path / "users"), b"x")
    assert facts(tmp_path / "users") == (os.geteuid(), os.getegid(), 0o600)
    assert (tmp_path / "users").read_bytes() == b"x"


@pytest.mark.usefixtures("generous_mask")
def test_a_known_file_keeps_its_mode_and_no_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"old")
    path.chmod(0o640)
    (tmp_path / "users.new").write_bytes(b"of a crash")
    replace_private_file(str(path), b"new")
    assert (path.read_bytes(), facts(path)[2]) == (b"new", 0o640)
    assert os.listdir(tmp_path) == ["users"]


@pytest.mark.usefixtures("generous_mask")
@as_root
@pytest.mark.parametrize(("folder_owner", "mode"), [(SERVICE, 0o600), (0, 0o640)])
def test_what_root_makes_is_the_service_s(tmp_path: Path, folder_owner: int, mode: int) -> None:
    os.chown(tmp_path, folder_owner, SERVICE)
    replace_private_file(str(tmp_path / "tokens"), b"x")
    assert facts(tmp_path / "tokens") == (folder_owner, SERVICE, mode)


@pytest.mark.usefixtures("generous_mask")
@as_root
def test_what_root_changes_stays_the_service_s(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"old")
    os.chown(path, SERVICE, SERVICE)
    path.chmod(0o600)
    replace_private_file(str(path), b"new")
    assert facts(path) == (SERVICE, SERVICE, 0o600)


@pytest.mark.usefixtures("generous_mask")
@as_root
def test_root_does_not_write_through_a_link_of_the_folder_s_owner(tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.write_bytes(b"precious")
    (tmp_path / "tokens.new").symlink_to(target)
    replace_private_file(str(tmp_path / "tokens"), b"x")
    assert target.read_bytes() == b"precious"


# --- The forgetful disk forgets in every way that a real one may, and nothing that was synced


SEEDS = range(200)


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem()
    disk.make_directory("/d")
    return disk


def synced_file(disk: FakeFileSystem, content: bytes) -> FakeFile:
    file = disk.create("/d/a")
    file.write_at(0, content)
    file.sync()
    disk.sync_directory("/d")
    return file


def outcomes(disk: FakeFileSystem, path: str = "/d/a") -> set[bytes]:
    return {disk.power_cut(random.Random(seed)).read(path) for seed in SEEDS}


def test_unsynced_writes_survive_in_any_order(disk: FakeFileSystem) -> None:
    file = synced_file(disk, b"....")
    file.write_at(0, b"1")
    file.write_at(2, b"2")
    assert outcomes(disk) == {b"....", b"1...", b"..2.", b"1.2."}


def test_a_write_tears_at_sectors_and_its_length_may_come_first(disk: FakeFileSystem) -> None:
    file = synced_file(disk, b"")
    file.write_at(0, b"a" * 1024)
    first, second, none = b"a" * 512, bytes(512) + b"a" * 512, b""
    assert outcomes(disk) >= {none, first, second, first + bytes(512), bytes(1024), b"a" * 1024}


def test_a_rename_may_be_lost_whole_and_never_by_half(disk: FakeFileSystem) -> None:
    synced_file(disk, b"old").close()
    disk.create("/d/b").sync()
    disk.sync_directory("/d")
    disk.rename("/d/b", "/d/a")
    left = {tuple(disk.power_cut(random.Random(seed)).list_names("/d")) for seed in SEEDS}
    assert left == {("a", "b"), ("a",)}
    assert outcomes(disk) == {b"old", b""}


def test_removals_before_one_sync_may_be_lost_one_by_one(disk: FakeFileSystem) -> None:
    for name in "xy":
        disk.create(f"/d/{name}")
    disk.sync_directory("/d")
    for name in "xy":
        disk.remove(f"/d/{name}")
    left = {tuple(disk.power_cut(random.Random(seed)).list_names("/d")) for seed in SEEDS}
    assert left == {(), ("x",), ("y",), ("x", "y")}


def test_a_full_disk_takes_a_part_and_says_so(disk: FakeFileSystem) -> None:
    file = synced_file(disk, b"1234")
    disk.capacity = 8
    assert disk.free_bytes("/d") == 4
    with pytest.raises(OSError, match="no space left"):
        file.allocate(9)
    with pytest.raises(OSError, match="no space left"):
        file.write_at(4, b"56789")
    assert disk.read("/d/a") == b"123456"
    file.write_at(0, b"4321")
    disk.capacity = None
    file.allocate(100)


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.__getitem__)
def test_an_injected_error_is_what_the_system_would_raise(number: int) -> None:
    with pytest.raises(OSError) as expected:
        raise OSError(number, "real")
    assert type(injected(number)) is type(expected.value)
    assert injected(number).errno == number


def test_a_sync_answers_for_what_was_written_before_it_began() -> None:
    node = Inode()
    node.change(Write(0, b"a"))
    began = node.changes
    node.change(Write(1, b"b"))
    node.sync(began)
    assert bytes(node.durable) == b"a"
    node.sync(began)
    assert bytes(node.durable) == b"a"
    node.sync()
    assert bytes(node.durable) == b"ab"
