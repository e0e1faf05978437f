"""Our own service, gpu_launcher.v1.VirtualMachine: what `gpu-launcher ctl` asks and KubeVirt's protocol has no words
for."""

from collections.abc import Iterator

from launcher.control.api import vm_pb2 as api
from launcher.control.methods import Call, Method, methods_of, one
from launcher.running import operations
from launcher.running.vm import VM, Phase


def virtual_machine(vm: VM) -> dict[str, Method]:
    def state(request: api.GetStateRequest) -> api.State:
        phase = vm.phase
        answer = api.State(
            namespace=vm.identity.namespace, name=vm.identity.name, uid=vm.identity.uid, phase=phase.value
        )
        # While it starts, libvirt may keep whoever asks waiting.
        if phase in (Phase.RUNNING, Phase.STOPPING):
            found = operations.state(vm.domain())
            answer.state, answer.reason = found.state, found.reason
        return answer

    def changes(request: api.WatchChangesRequest, call: Call) -> Iterator[api.Change]:
        with vm.changes() as found:
            call.when_over(found.close)
            for change in found:
                yield api.Change(
                    time=change.time,
                    phase=change.phase.value,
                    event=change.event,
                    reason=change.reason,
                    lost=change.lost,
                )

    answers = {
        "GetState": one(state),
        "GetXML": one(lambda request: api.XML(xml=operations.xml(vm.domain()))),
        "GetConsole": one(lambda request: api.Console(path=operations.console(vm.domain()))),
        "WatchChanges": changes,
    }
    return methods_of(api.DESCRIPTOR.services_by_name["VirtualMachine"], answers)
