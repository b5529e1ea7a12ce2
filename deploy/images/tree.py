"""The file tree of an image: Debian's Python, the libraries of ``deploy/requirements-*.txt`` by their hashes, and Weft.

Python is that of this machine's Debian, since its byte code is compiled here. Nothing of the image runs while it is
made, so it may be for another architecture.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.images.debian import NotHere, unpack
from deploy.images.stripping import strip

ROOT = Path(__file__).parents[2]
HOME = "opt/weft"
USER = 10001
"""Owner of /var/lib/weft. Of all else it is root."""
STATE = "var/lib/weft"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture -> that of wheels."""
PYTHONS = ("python3.11", "python3.12", "python3.13")
NEEDED = ("ca-certificates", "libstdc++6", "tzdata")
LEFT_OUT = (
    "debconf",
    "dpkg",
    "libacl1",
    "libmd0",
    "libpcre2-8-0",
    "libselinux1",
    "openssl",
    "readline-common",
    "tar",
    "libcom-err2",
    "libdb5.3",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libnsl2",
    "libtirpc-common",
    "libtirpc3",
)
"""Packages for scripts of installation, of which an image has none, and for Python's modules ``nis`` and ``_dbm``."""
UNUSED = (
    "etc/cron.daily",
    "etc/init.d",
    "usr/lib/*/gconv",
    "usr/lib/binfmt.d",
    "usr/lib/python3*/pydoc_data",
    "usr/lib/python3*/lib-dynload/nis.*",
    "usr/lib/python3*/lib-dynload/_dbm.*",
    "usr/lib/python3*/lib-dynload/*test*",
    "usr/lib/systemd",
    "usr/sbin/*",
    "usr/share/applications",
    "usr/share/bash-completion",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/pixmaps",
    "usr/share/zoneinfo/posix",
    "usr/share/zoneinfo/right",
)
"""Files of packages that no program of the image opens. ``gconv`` alone has 20 MB of character sets for iconv."""
GLIBC_MAX = 36
"""Minor version of Debian 12's C library 2.36: a wheel may ask for any older one, from 2.17 on."""
USERS = f"root:x:0:0:root:/root:/sbin/nologin\nweft:x:{USER}:{USER}::/{STATE}:/sbin/nologin\n"
GROUPS = f"root:x:0:\nweft:x:{USER}:\n"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


def system(root: Path, architecture: str) -> None:
    """Lay out Debian's part: Python, certificates of authorities, time zones, and the user.

    Raises:
        NotHere: this machine cannot make it.
    """
    python = interpreter()
    unpack((python, *NEEDED), architecture, root, LEFT_OUT)
    for pattern in UNUSED:
        for path in root.glob(pattern):
            remove(path)
    for path in (root / "usr/share/doc").glob("*/*"):  # licences stay
        if path.name != "copyright":
            remove(path)
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    put(root / CERTIFICATES, "".join(path.read_text().rstrip() + "\n" for path in authorities))
    (root / "usr/lib/ssl").mkdir(parents=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to(f"/{CERTIFICATES}")
    put(root / "etc/passwd", USERS)
    put(root / "etc/group", GROUPS)
    put(root / "etc/nsswitch.conf", "hosts: files dns\n")
    for name in ("etc/weft", "proc", "sys", "dev", "run", "root", "tmp", STATE):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / STATE).chmod(0o750)
    compile_all(root, root / "usr/lib" / python)


def libraries(root: Path, architecture: str, kind: str) -> None:
    """Install the libraries of an ``edge`` or a ``hub`` into an environment in ``/opt/weft``."""
    python = interpreter()
    home = root / HOME
    (home / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(f"/usr/bin/{python}")
    put(home / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    install(packages(root), *wheels_for(architecture, python[6:]), *wanted(kind))
    remove_scripts(packages(root))
    for path in packages(root).rglob("*.so*"):
        strip(path)
    compile_all(root, packages(root))


def wheels_for(architecture: str, python: str) -> list[str]:
    """Return pip's options for wheels of another machine with Debian 12 or later, and of nothing to compile."""
    platforms = [f"--platform=manylinux_2_{minor}_{MACHINES[architecture]}" for minor in range(17, GLIBC_MAX + 1)]
    return ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]


def wanted(kind: str) -> list[str]:
    """Return pip's options for the libraries of an ``edge`` or a ``hub``, with their hashes."""
    return ["--no-deps", "--require-hashes", "-r", str(ROOT / f"deploy/requirements-{kind}.txt")]


def weft(root: Path, wheel: Path) -> None:
    """Install Weft's wheel beside its libraries, with the command ``weft``."""
    install(packages(root), "--no-deps", "--no-index", "--find-links", str(wheel.parent.resolve()), "weft-fabric")
    remove_scripts(packages(root))
    put_command(root, HOME)
    for folder in ("weft", "spark_sinks", "pyspark_weft"):
        compile_all(root, packages(root) / folder)


def put_command(root: Path, home: str) -> None:
    """Write the command ``weft`` of the environment that will be at ``/home``."""
    command = root / home / "bin/weft"
    put(command, f"#!/{home}/bin/python\nimport sys\n\nfrom weft.__main__ import main\n\nsys.exit(main())\n")
    command.chmod(0o755)


def remove_scripts(target: Path) -> None:
    """Remove the scripts of libraries, which name this machine's Python, and their sums in the libraries' lists."""
    shutil.rmtree(target / "bin", ignore_errors=True)
    for path in target.glob("*.dist-info/RECORD"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith(("../../bin/", "bin/"))))


def packages(root: Path) -> Path:
    """Return the folder of the environment's libraries."""
    return root / HOME / "lib" / interpreter() / "site-packages"


def interpreter() -> str:
    """Return the name of the Python that this machine's Debian has, such as ``python3.11``.

    Raises:
        NotHere: it has none that Weft runs on.
    """
    name = os.path.basename(os.path.realpath("/usr/bin/python3"))
    if name not in PYTHONS:
        raise NotHere(f"/usr/bin/python3 is {name}, not one of {', '.join(PYTHONS)}, whose byte code an image needs")
    return name


def install(target: Path, *arguments: str) -> None:
    """Install wheels into a folder, where others may be already."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    command = [*pip, "--upgrade", f"--target={target}", *arguments]
    subprocess.run(command, check=True)  # noqa: S603


def compile_all(root: Path, folder: Path) -> None:
    """Compile modules where they are, so that a start from a read-only file system does not."""
    # Unchecked: times of files in an image are not those of their sources.
    options = ["-qq", "-f", "--invalidation-mode=unchecked-hash", "-s", str(root), "-p", "/"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [f"/usr/bin/{interpreter()}", "-m", "compileall", *options, str(folder)]
    subprocess.run(command, check=True, env=environment)  # noqa: S603


def put(path: Path, text: str) -> None:
    """Write a file, and the folders that lead to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
