"""kubectl gpuvm port-forward, ssh and scp: ports of the pod, which passt forwards to the guest."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags, OneVM
from gpuvm.process import exec_program
from gpuvm.stream import forwarded
from gpuvm.target import Target
from program.errors import UserError


def port_forward(
    vm: OneVM,
    ports: Annotated[list[str], typer.Argument(metavar="[tcp/]PORT[:GUEST]", help="Local ports, and the guest's.")],
    cluster: ClusterFlags,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen.  [default: localhost]")
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Join one port with standard input and output, for ssh's ProxyCommand.")
    ] = False,
) -> None:
    """Forward local ports to the guest's, until Ctrl-C."""
    pairs = [_pair(word) for word in ports]
    kubectl, pod = cluster.running_pod([vm])
    if not stdio:
        kubectl.port_forward(pod, address, pairs)
    if len(pairs) != 1:
        raise UserError("--stdio", f"found {len(pairs)} ports", "expected one")
    forwarded(kubectl.port_forward_command(pod, pairs[0].rpartition(":")[2]))


def _pair(word: str) -> str:
    """Return the ports as kubectl takes them. UserError for UDP, and for what is none."""
    protocol, slash, ports = word.rpartition("/")
    if slash and protocol.lower() != "tcp":
        raise UserError(word, "kubectl forwards TCP alone", "expected [tcp/]PORT[:GUEST]")
    numbers = ports.split(":")
    if len(numbers) > 2 or not all(each.isascii() and each.isdecimal() and 0 < int(each) < 1 << 16 for each in numbers):
        raise UserError(word, "is no port", "expected [tcp/]PORT[:GUEST], like 8080 or 8080:80")
    return ports


@dataclass(frozen=True, kw_only=True)
class SSH:
    """What ssh and scp are told."""

    username: Annotated[
        str | None, typer.Option("--username", "-l", metavar="USER", help="The guest's user.  [default: ssh's]")
    ] = None
    identity_file: Annotated[
        str | None, typer.Option("--identity-file", "-i", metavar="FILE", help="A private key.")
    ] = None
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="The guest's port.")] = 22
    local_ssh_opts: Annotated[
        list[str] | None,
        typer.Option(
            "--local-ssh-opts", "-t", metavar="WORD", help="A word for the local program; may be given again."
        ),
    ] = None

    def words(self, cluster: ClusterFlags, target: Target) -> list[str]:
        """Return the options of ssh and scp by which they come to the guest of the target's name and namespace."""
        place = [f"vm/{target.name}/{target.namespace}", str(self.port)]
        flags = replace(cluster, namespace=None).flags()
        proxy = shlex.join([sys.executable, "-P", "-m", "gpuvm", "port-forward", "--stdio", *flags, *place])
        identity = [] if self.identity_file is None else ["-i", self.identity_file]
        # To ssh, %h and the like are its own words.
        return ["-o", f"ProxyCommand={proxy.replace('%', '%%')}", *(self.local_ssh_opts or []), *identity]

    def host(self, target: Target) -> str:
        """Return what ssh calls the guest, also in known_hosts: `kubectl virt` has the same name."""
        user = target.user or self.username
        return f"{f'{user}@' if user else ''}vm.{target.name}.{target.namespace}"


def ssh(
    vm: Annotated[str, typer.Argument(metavar="[USER@]VM", help="Like admin@vm/NAME/NAMESPACE.")],
    cluster: ClusterFlags,
    flags: SSH,
    command: Annotated[str, typer.Option("--command", "-c", metavar="COMMAND", help="What to run there.")] = "",
) -> None:
    """Log in to the guest by ssh, through the API server."""
    target = _found(cluster, vm)
    exec_program(["ssh", *flags.words(cluster, target), flags.host(target), *([command] if command else [])])


def scp(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A file here, or [USER@]VM:PATH.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="The other one.")],
    cluster: ClusterFlags,
    flags: SSH,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Directories with what is in them.")] = False,
    preserve: Annotated[bool, typer.Option("--preserve", help="Keep times and modes.")] = False,
) -> None:
    """Copy a file to the guest or from there, by scp."""
    remote = [each for each in (source, to) if ":" in each]
    if len(remote) != 1:
        raise UserError(f"scp {source} {to}", "expected one of both in a guest", "write it as [USER@]VM:PATH")
    name, _, path = remote[0].partition(":")
    target = _found(cluster, name)
    remote_file = f"{flags.host(target)}:{path}"
    files: Sequence[str] = [remote_file if each is remote[0] else each for each in (source, to)]
    options = [*["-r"] * recursive, *["-p"] * preserve]
    exec_program(["scp", *flags.words(cluster, target), *options, *files])


def _found(cluster: ClusterFlags, words: str) -> Target:
    """Return the VM that is named, with its namespace, once there is one."""
    _, target = cluster.of([words])
    _, pod = cluster.running_pod([words])
    return target._replace(namespace=pod.metadata.namespace)
