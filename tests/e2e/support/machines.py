"""Machines for a test: each with an address, a file system and processes of its own, by namespaces.
Needs root.

A machine shares nothing with the others but a cable to the same switch, and with this machine the
programs in /usr and the libraries of this very Python, read-only. What is not in its own root is
not there: neither this repository nor another machine's files. Where systemd is installed, it is
process 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

__all__ = ["HAS_SYSTEMD", "REPOSITORY", "Machine", "Network", "permitted"]

START_SECONDS = 60.0
COMMAND_SECONDS = 240.0
REPOSITORY = Path(__file__).parents[3]
HAS_SYSTEMD = Path("/lib/systemd/systemd").exists()
"""Then it is process 1 of every machine."""
TOP = ("bin", "lib", "lib64", "sbin")
"""Links into /usr where /usr is all there is, as on every system of the last years."""
OWN = (
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "root",
    "srv",
    "var/lib",
    "var/log",
    "etc/fedelmy",
    "etc/systemd/system",
    "usr",
    "opt/fedelmy/bin",
    "sbin-local",
)
SHARED_ETC = (
    "alternatives",
    "ld.so.conf.d",
    "login.defs",
    "nsswitch.conf",
    "pam.d",
    "security",
    "ssl/openssl.cnf",
)

BOOT = """
set -eu
root=$1 init=$2 group=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --rbind /usr "$root/usr"; mount -o remount,bind,ro "$root/usr"
mount --bind "$root/sbin-local" "$root/usr/local/sbin"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"; mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --rbind "$1" "$root$2"; mount -o remount,bind,ro "$root$2"
    shift 2
done
cd "$root"; mkdir .before
if [ "$init" = systemd ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mkdir -p "sys/fs/cgroup/$group"; echo 0 > "sys/fs/cgroup/$group/cgroup.procs"
    umount sys/fs/cgroup
fi
exec unshare --cgroup sh -euc "
    [ $init != systemd ] || mount -t cgroup2 cgroup2 sys/fs/cgroup
    pivot_root . .before
    umount -l /.before; rmdir /.before
    ldconfig 2>/dev/null
    echo up
    [ $init = systemd ] || exec sleep infinity
    export container=test
    exec /lib/systemd/systemd --unit=basic.target --show-status=0" </dev/null
"""
"""What process 1 of a machine does: puts the machine's root together, leaves the old one behind,
and stays.

The kernel's settings (/proc/sys), which all machines have in common, can only be read there."""

SWEEP = """
mount -t cgroup2 cgroup2 /sys/fs/cgroup
[ ! -e "/sys/fs/cgroup/$1" ] || find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} +
"""
"""What remains of a systemd that was killed: empty control groups."""


def permitted() -> str:
    """Why this machine does not let us make others, or nothing."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if missing := [
        tool
        for tool in ("ip", "unshare", "nsenter", "useradd", "runuser")
        if not shutil.which(tool)
    ]:
        return f"no {', '.join(missing)} here"
    if not Path("/bin").is_symlink():
        return "/bin is no link into /usr here"
    name = f"fe{os.getpid() % 65536:x}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return f"no network namespace can be made: {made.stderr.strip()}" if made.returncode else ""


class Network:
    """A switch, and the machines at it: `names` at 10.x.y.1, 2, 3 and so on, each known to all as
    NAME.example.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        number = os.getpid() % 65536
        self._mark, prefix = f"fe{number:x}", f"10.{number >> 8}.{number & 255}"
        self._switch = f"{self._mark}sw"
        self.machines = {
            name: Machine(directory / name, name, f"{self._mark}{place}", f"{prefix}.{place}")
            for place, name in enumerate(names, 1)
        }

    def __enter__(self) -> Self:
        try:
            # The switch is in a namespace, too: this machine itself gets no way to the others.
            _run("ip", "netns", "add", self._switch)
            _run("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
            _run("ip", "-n", self._switch, "link", "set", "switch", "up")
            hosts = "".join(
                f"{one.address} {one.name}.example {one.name}\n" for one in self.machines.values()
            )
            for machine in self.machines.values():
                machine.furnish(f"127.0.0.1 localhost\n{hosts}")
                machine.plug(self._switch)
                machine.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        with ExitStack() as rest:  # all of it, even if something cannot be taken down
            rest.callback(
                subprocess.run,
                ["ip", "netns", "delete", self._switch],
                capture_output=True,
                check=False,
            )
            for machine in self.machines.values():
                rest.callback(machine.halt)


class Machine:
    """One machine: a root directory, an address, and whatever runs on it."""

    def __init__(self, root: Path, name: str, space: str, address: str) -> None:
        self.root, self.name, self.space, self.address = root, name, space, address
        self._first: subprocess.Popen[str] | None = None
        self._services: list[subprocess.Popen[bytes]] = []

    def furnish(self, hosts: str) -> None:
        """The root directory: what a freshly installed machine has, and Python with our libraries."""
        for place in OWN:
            (self.root / place).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        for top in TOP:
            if Path("/", top).is_symlink():
                (self.root / top).symlink_to(Path("/", top).readlink())
        etc = self.root / "etc"
        for name in SHARED_ETC:
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            if Path("/etc", name).is_dir():
                shutil.copytree(Path("/etc", name), etc / name, symlinks=True)
            elif Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), etc / name)
        (etc / "hosts").write_text(hosts)
        (etc / "machine-id").write_text("")
        (etc / "passwd").write_text(
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/usr/sbin/nologin\n"
        )
        (etc / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
        (etc / "shadow").write_text("root:*:20000::::::\nnobody:*:20000::::::\n")
        self._install()

    def _install(self) -> None:
        """/opt/fedelmy as `python3 -m venv` and `pip install` would make it, with the libraries of
        this very Python.
        """
        from importlib.metadata import version

        home = self.root / "opt/fedelmy"
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = home / "lib" / python / "site-packages"
        packages.mkdir(parents=True)
        base = _shared()[Path(sys.base_prefix).resolve()]
        (home / "bin" / "python").symlink_to(base / "bin" / python)
        # A Python that is a shared library is looked for where it was installed, which is not
        # there.
        (self.root / "etc/ld.so.conf").write_text(f"{base}/lib\ninclude /etc/ld.so.conf.d/*.conf\n")
        (home / "pyvenv.cfg").write_text(
            f"home = {base}/bin\ninclude-system-site-packages = false\n"
        )
        for part in ("proto/fedelmy_proto", "node/fedelmy_node", "launcher/fedelmy_launcher"):
            shutil.copytree(REPOSITORY / part, packages / Path(part).name)
        told = packages / f"fedelmy-{version('fedelmy')}.dist-info"
        told.mkdir()
        (told / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fedelmy\nVersion: {version('fedelmy')}\n"
        )
        (packages / "libraries.pth").write_text(
            "".join(f"{_shared()[path]}\n" for path in _libraries())
        )
        for command, module in (
            ("fedelmy-node", "fedelmy_node"),
            ("fedelmy-launch", "fedelmy_launcher"),
        ):
            script = home / "bin" / command
            script.write_text(
                f"#!/opt/fedelmy/bin/python\nimport sys\nfrom {module}.cli import main\nsys.exit(main())\n"
            )
            script.chmod(0o755)

    def plug(self, switch: str) -> None:
        """The cable to the switch, and the address."""
        port = f"{self.space}p"
        _run("ip", "netns", "add", self.space)
        _run(
            "ip",
            "link",
            "add",
            "cable",
            "netns",
            self.space,
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            switch,
        )
        _run("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
        _run("ip", "-n", self.space, "link", "set", "lo", "up")
        _run("ip", "-n", self.space, "address", "add", f"{self.address}/24", "dev", "cable")
        _run("ip", "-n", self.space, "link", "set", "cable", "up")

    def boot(self) -> None:
        init = "systemd" if HAS_SYSTEMD else "none"
        shared = [str(text) for pair in _shared().items() for text in pair]
        with self.told("ready.sock") as ready:
            self._first = subprocess.Popen(
                [
                    "nsenter",
                    f"--net=/run/netns/{self.space}",
                    "unshare",
                    "--mount",
                    "--uts",
                    "--ipc",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "sh",
                    "-c",
                    BOOT,
                    "boot",
                    str(self.root),
                    init,
                    self.space,
                    *shared,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=self.environment | {"NOTIFY_SOCKET": "/ready.sock"},
            )
            assert self._first.stdout is not None
            said = self._first.stdout.readline()
            assert said == "up\n", said + self._first.stdout.read()
            if HAS_SYSTEMD:
                # Its words must not fill the pipe.
                threading.Thread(target=self._first.stdout.read, daemon=True).start()
                while "READY=1" not in ready():
                    pass

    @contextmanager
    def told(self, name: str) -> Iterator[Callable[[], str]]:
        """A socket /NAME of the machine for whoever says READY=1 there; gives what waits for the
        next message.
        """
        path = self.root / name
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.bind(str(path))
            path.chmod(0o666)
            channel.settimeout(START_SECONDS)
            try:
                yield lambda: channel.recv(4096).decode()
            finally:
                path.unlink()

    def halt(self) -> None:
        """Everything that runs there is killed with its process 1."""
        if self._first is not None:
            if self._first.poll() is None:
                os.kill(self._process, signal.SIGKILL)
            self._first.wait()
            for service in self._services:
                service.wait()
            assert self._first.stdout is not None
            self._first.stdout.close()
        subprocess.run(["ip", "netns", "delete", self.space], capture_output=True, check=False)
        if HAS_SYSTEMD:
            subprocess.run(
                ["unshare", "--mount", "sh", "-c", SWEEP, "sweep", self.space], check=True
            )

    @property
    def _process(self) -> int:
        """Process 1 of the machine, as seen from here."""
        assert self._first is not None
        return int(
            Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()[0]
        )

    def inside(self, *command: str) -> list[str]:
        """A command as it is typed there, by root."""
        return [
            "nsenter",
            "--target",
            str(self._process),
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--cgroup",
            "--root",
            "--",
            *command,
        ]

    def run(self, command: str, typed: str = "") -> str:
        """What a command that must work printed there; `typed` is what a person at its terminal
        answers.
        """
        person, terminal = os.openpty()
        try:
            os.write(person, typed.encode())
            done = subprocess.run(
                self.inside("sh", "-e", "-c", f"cd /root; {command}"),
                env=self.environment,
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        finally:
            os.close(terminal)
            os.close(person)
        assert done.returncode == 0, (
            f"{self.name}# {command}\nexit code {done.returncode}\n{done.stdout}{self.journal()}"
        )
        return done.stdout

    def serve(self, command: str, log: str, ready: str) -> None:
        """A command that goes on until the machine halts, once it has said READY=1 on its socket."""
        with self.told(ready) as next_message, (self.root / log).open("wb") as output:
            self._services.append(
                subprocess.Popen(
                    self.inside("sh", "-c", command),
                    env=self.environment | {"NOTIFY_SOCKET": f"/{ready}"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )
            while "READY=1" not in next_message():
                pass

    def journal(self) -> str:
        """What services said, if there is systemd."""
        command = self.inside("journalctl", "--no-pager", "--boot", "--lines=40")
        return (
            subprocess.run(command, capture_output=True, text=True, check=False).stdout
            if HAS_SYSTEMD
            else ""
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin", "HOME": "/root", "LANG": "C.UTF-8"}

    def received_bytes(self) -> int:
        """What has come in by the cable."""
        line = next(
            line
            for line in self.run("cat /proc/net/dev").splitlines()
            if line.strip().startswith("cable:")
        )
        return int(line.split(":")[1].split()[0])


def _libraries() -> list[Path]:
    """Where this Python finds installed packages, in order."""
    found = [
        Path(entry).resolve()
        for entry in sys.path
        if entry and any(Path(entry).glob("*.dist-info"))
    ]
    return list(dict.fromkeys(found))


def _shared() -> dict[Path, Path]:
    """Python and its libraries: where they are here, and on the other machines, out of /root, /home
    and /tmp.
    """
    wanted = dict.fromkeys([Path(sys.base_prefix).resolve(), *_libraries()])
    return {path: Path("/opt/shared", str(number)) for number, path in enumerate(wanted)}


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
