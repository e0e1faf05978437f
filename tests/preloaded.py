"""What the programs import after their commands: their forks need not import it again."""

import gc
import os
from importlib import import_module

# As plugin.startup and launcher.runtime.worker have it before they import grpc and libvirt.
os.environ.update(GRPC_VERBOSITY="NONE", LIBVIRT_DEBUG="4")

for _module in (
    *("plugin.cli", "plugin.config_file", "plugin.device_plugin.daemon", "plugin.dra.driver"),
    *("launcher.cli", "launcher.runtime.run", "launcher.control.listener", "launcher.control.virtual_machine"),
    *("launcher.metrics.listener", "launcher.hook.calls", "launcher.hook.sidecar"),
):
    import_module(_module)

# Their garbage collectors need not look at it, which would copy its memory, too.
gc.collect()
gc.freeze()
