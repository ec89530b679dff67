"""One thing of the machine at a time is too small, taken or not to be written, for real."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from vime_cli.doctor import disk, limits, ports, shared_memory
from vime_cli.units import GIB, MIB


def in_process(code: str, *limit: str) -> str:
    """Output of Python code in a process of its own, under a ``resource`` limit."""
    before = f"import resource; resource.setrlimit(resource.{limit[0]}, {limit[1]})\n" if limit else ""
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOOK = "from vime_cli.doctor import limits as l; one = l.{0}(); print(one.status, '|', one.detail, '|', one.fix)"


# limits ------------------------------------------------------------------------------------------------------
def test_too_few_open_files() -> None:
    status, detail, fix = in_process(LOOK.format("files"), "RLIMIT_NOFILE", "(128, 128)").split(" | ")
    assert (status, detail) == ("broken", "128 open files a process, up to 128; a run needs 256")
    assert "--ulimit nofile=65536" in fix


def test_few_open_files_are_a_warning() -> None:
    out = in_process(LOOK.format("files"), "RLIMIT_NOFILE", "(1000, 1000)")
    assert out.startswith("warning | 1000 open files a process, up to 1000; 4096 are advised |")


def test_a_low_soft_limit_that_ray_can_raise_is_well() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard == resource.RLIM_INFINITY or hard >= limits.FILES_ADVISED, "this machine itself has too low a limit"
    assert in_process(LOOK.format("files"), "RLIMIT_NOFILE", f"(256, {hard})").startswith("ok | 256 open files")


def test_too_few_processes() -> None:
    """Root is not bound by the limit, so the process becomes somebody else where it can, after its imports."""
    drop = "import os; from vime_cli.doctor import limits\nif os.geteuid() == 0: os.setuid(65534)\n"
    out = in_process(f"{drop}{LOOK.format('tasks')}", "RLIMIT_NPROC", "(100, 100)")
    assert out.startswith("broken | 100 processes and threads (ulimit -u); a run needs 512 | ulimit -u 4096")


def test_bounded_virtual_memory() -> None:
    out = in_process(LOOK.format("memory"), "RLIMIT_AS", f"({8 * GIB}, {8 * GIB})")
    assert out == "broken | 8589934592 bytes; Ray and torch map much more than they use | ulimit -v unlimited"


# shared memory -----------------------------------------------------------------------------------------------
def test_shared_memory_is_really_written_and_left_as_it_was() -> None:
    folder = Path("/dev/shm")
    before = set(folder.iterdir())
    found = shared_memory.file_system(folder, 2 * MIB)
    assert found.ok
    assert {path for path in folder.iterdir() if path.name.startswith("tmp")} <= before


def test_a_shared_memory_that_is_too_small() -> None:
    space = os.statvfs("/dev/shm")
    found = shared_memory.file_system(Path("/dev/shm"), space.f_blocks * space.f_frsize + MIB)
    assert found.status == "broken"
    assert "an engine of several devices needs" in found.detail
    assert "--shm-size" in found.fix


def test_a_full_file_system_is_found_by_writing(tmp_path: Path) -> None:
    """The limit on the size of files plays a disk quota, which no free count shows."""
    code = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path; from vime_cli.doctor import shared_memory as s\n"
        f"one = s.file_system(Path({str(tmp_path)!r}), 8 << 20); print(one.status, one.detail)"
    )
    assert in_process(code, "RLIMIT_FSIZE", "(1 << 20, 1 << 20)") == "broken cannot be written: File too large"


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    found = shared_memory.file_system(tmp_path / "shm")
    assert (found.status, found.detail) == ("broken", "cannot be written: No such file or directory")


def test_a_model_that_does_not_fit_into_memory_twice() -> None:
    assert shared_memory.anonymous(3 * GIB, available=8 * GIB).ok
    found = shared_memory.anonymous(5 * GIB, available=8 * GIB)
    assert found.status == "broken"
    assert found.detail == "8.0 GiB of memory are available, two versions of 5.0 GiB of weights need 10.0 GiB"


# ports -------------------------------------------------------------------------------------------------------
def test_a_taken_port() -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        number = server.getsockname()[1]
        found = ports.named(number)
        assert (found.status, found.detail) == ("broken", "is taken")
        assert f"sport = :{number}" in found.fix
    assert ports.named(number).status == "ok"


def test_a_number_that_is_no_port() -> None:
    assert ports.named(70000).status == "broken"


def test_an_address_that_is_not_this_machines() -> None:
    found = ports.listening("node", "198.51.100.1")
    assert found.status == "broken"
    assert found.detail.startswith("198.51.100.1: 64 servers cannot listen and be reached:")


def test_too_few_descriptors_for_the_servers() -> None:
    code = "from vime_cli.doctor import ports as p; one = p.listening('loopback', p.LOOPBACK)\n"
    out = in_process(code + "print(one.status, one.detail)", "RLIMIT_NOFILE", "(40, 40)")
    assert out.startswith("broken 127.0.0.1: 64 servers cannot listen")
    assert "Too many open files" in out


@pytest.mark.parametrize(("taken", "status"), [(0, "ok"), (79, "ok"), (80, "broken")])
def test_an_exhausted_range_of_ports(tmp_path: Path, taken: int, status: str) -> None:
    """The kernel's own tables, written by the test: 400 ports in the range."""
    (tmp_path / "range").write_text("50000\t50399\n")
    rows = [f"   {n}: 0100007F:{50000 + n:04X} 0100007F:0050 06" for n in range(4 * taken)]
    rows.append("   9: 0100007F:0016 00000000:0000 0A")  # outside of the range
    (tmp_path / "tcp").write_text("\n".join(["  sl  local_address rem_address   st", *rows, *rows]) + "\n")
    found = ports.ephemeral(tmp_path / "range", tmp_path)
    assert (found.status, found.detail) == (status, f"{4 * taken} of the ports 50000 to 50399 are taken")


def test_the_kernels_tables_are_read_as_they_are() -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        assert server.getsockname()[1] in set(ports.local_ports(Path("/proc/net")))


# disk --------------------------------------------------------------------------------------------------------
def test_a_full_disk(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    found = disk.folder("runs", tmp_path, free.f_blocks * free.f_frsize + GIB, "free space")
    assert (found.status, found.fix) == ("broken", "free space")
    assert ", needed are " in found.detail


def test_a_folder_that_is_not_there_yet_is_judged_by_its_parent_and_not_made(tmp_path: Path) -> None:
    assert disk.folder("runs", tmp_path / "a" / "b", 0, "").ok
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_which_there_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    found = disk.folder("runs", tmp_path / "runs", 0, "choose another")
    assert found.status == "broken"
    assert "cannot be written" in found.detail


def test_a_read_only_file_system() -> None:
    found = disk.folder("runs", Path("/proc/runs"), 0, "choose another")
    assert found.status == "broken"
