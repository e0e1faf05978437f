"""The floor of `gpu-launcher run`: libvirt's embedded driver in bare Python. It defines, starts, and ends at SIGTERM.

`python -m tests.bench.bare ROOT DOMAIN.xml`. It has our supervisor, since what is in question is what the rest costs:
under an init that reaps late, libvirt waits for each QEMU that it has ended.
"""

import signal
import sys
import threading
from pathlib import Path

from launcher.runtime.supervise import supervise


def work() -> None:
    import libvirt

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    root, xml = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
    conf = root / "etc" / "qemu.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(
        'stdio_handler = "file"\nuser = "+0"\ngroup = "+0"\nsecurity_driver = "none"\nnamespaces = []\n'
        "cgroup_controllers = []\nremember_owner = 0\n"
    )
    libvirt.virEventRegisterDefaultImpl()

    def loop() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=loop, daemon=True).start()
    connection = libvirt.open(f"qemu:///embed?root={root}")
    domain = connection.defineXML(xml)
    domain.create()
    print("is running", file=sys.stderr, flush=True)
    signal.sigwait([signal.SIGTERM])
    domain.destroy()
    domain.undefine()
    connection.close()


if __name__ == "__main__":
    sys.exit(supervise(work, lambda: None, lambda: 0.0, print))
