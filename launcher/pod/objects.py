"""The objects that run a VM, as Kubernetes' API takes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.fields.quantity import written
from launcher.manifest.identity import NAME, NAMESPACE, NODE
from launcher.manifest.parser import ParsedVM
from launcher.pod.claims import ClaimTemplate, by_claim
from launcher.pod.controllers import Kind, Run, refuse_unfit, run_by
from launcher.pod.documents import documents
from launcher.pod.metadata import PASSED, annotations, by_content, labels, passed_on, state_claim
from launcher.pod.resources import container_resources, resource_claims
from launcher.pod.security import Confinement, Level, container_security, handover, pod_security, refuse_above
from launcher.vm import paths
from launcher.vm.cards.annotations import refuse_unheard, refuse_without_dra
from launcher.vm.from_spec import guest_of
from launcher.vm.lifecycle.pod import grace, probes, restart_policy
from launcher.vm.memory.pod import ANY_CARD, MappedBARs, PodMemory, memory
from launcher.vm.network.guest import refuse_forwarded
from launcher.vm.plain import PodObject, literal, plain
from launcher.vm.pod import pod_needs
from launcher.vm.spec import Metadata, Spec, VirtualMachine
from launcher.vm.volumes.pod import (
    keeps_state,
    mounts,
    pod_volumes,
    pull_secrets,
    service_account,
    volume_devices,
    volume_mounts,
)
from program.errors import UserError
from program.ports import ALLOW_HOST

#: Where the pod says what its memory is for, and which level of Pod Security it was printed for, if any.
MEMORY = "gpu-launcher.dev/memory"
LEVEL = "gpu-launcher.dev/level"
#: In the ConfigMap beside the manifest: the flags by which `gpu-launcher pod` makes these objects again, a line each.
FLAGS = "pod-flags"
_SCRAPED, _SCRAPED_PORT = "prometheus.io/scrape", "prometheus.io/port"
_CONTAINER = "compute"  # as KubeVirt's is called, for `kubectl exec -c` and `kubectl logs -c`
_STATE_SIZE = 10 << 20  # bytes; EFI's variables are 528 KiB, a TPM's state and keys some 100
_LARGEST_DATA = 1 << 20  # bytes of a ConfigMap (Kubernetes' MaxSecretSize)

_AS_A_POD = Run()
_PRIVILEGED = Confinement()


def objects(
    parsed: ParsedVM,
    *,
    image: str,
    block: frozenset[str],
    node_devices: str,
    start: bool = False,
    imports: bool = True,
    dra: bool = False,
    owner: str | None = None,
    run: Run = _AS_A_POD,
    logs: Sequence[str] = (),
    metrics: int | None = None,
    hosts: Sequence[str] = (),
    confinement: Confinement = _PRIVILEGED,
    card: MappedBARs = ANY_CARD,
    words: Sequence[str] = (),
) -> tuple[PodObject, ...]:
    """Return the VM's record, which is the ConfigMap with the manifest and `words`; the claim for state that outlives
    the pod, if the VM keeps any; the DataVolumes of its templates, with `imports`; and the Pod, or the controller that
    `run` names.

    With `dra`, which then gives the cards, there is also the ResourceClaimTemplate, and the manifest asks for its
    requests. `image` is the launcher's. `block`: the volumes whose claim is a block device. `node_devices` is the
    domain of the resources that are /dev/kvm and the like. With `start` even a VM that is not to run has a pod. `owner`
    is the uid of that last object in the cluster: objects that only it needs are deleted with it. `logs` are flags of
    the launcher's log, `metrics` is the pod's port for its own metrics, `hosts` are names by which that port may be
    requested. `card`: the BARs of each device, for the pod's memory. `words` are the flags that repeat these arguments,
    to start the VM again after a stop. UserError, by the manifest's path, for what no pod can be, or no pod of this
    `confinement`.
    """
    vm, devices = parsed.instance.metadata, parsed.instance.spec.domain.devices
    template: ClaimTemplate | None = None
    if dra:
        parsed, template = by_claim(parsed)
    else:
        refuse_without_dra(vm.annotations.selection, devices.entries)
        refuse_unheard(vm.annotations.selection, devices.entries)
    manifest = _record(parsed, vm, words)
    state = _state(parsed, vm) if keeps_state(parsed.instance.spec) else None
    restart = restart_policy(parsed.manifest, start=start)
    refuse_unfit(parsed, run, restart, imports=imports)
    # Of a StatefulSet each pod has claims of its own.
    beside = run.kind is not Kind.STATEFULSET
    claims = [state] if state is not None and beside else []
    volumes = data_volumes(parsed) if imports and beside else ()
    name = manifest["metadata"]["name"]
    block |= parsed.block
    served = () if metrics is None else (f"--metrics={metrics}", *(f"{ALLOW_HOST}={name}" for name in hosts))
    flags = (*served, *logs)
    pod = _pod(
        parsed, name, restart, confinement, image=image, block=block, node_devices=node_devices, flags=flags, card=card
    )
    if metrics is not None:
        refuse_forwarded(metrics, parsed.instance.spec)
        _show_metrics(pod, metrics)
    templates = [_claim_template(parsed, vm, template)] if template is not None else []
    made = run_by(run, pod, parsed, state, imports=imports)
    if owner is not None:
        for each in (manifest, *templates):
            each["metadata"]["ownerReferences"] = [_reference(made[-1], owner)]
    return (manifest, *claims, *volumes, *templates, *made)


def _reference(owner: PodObject, uid: str) -> PodObject:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid,
    }


def _record(parsed: ParsedVM, vm: Metadata, words: Sequence[str]) -> PodObject:
    """Return the ConfigMap with the manifest and the flags: the file byte for byte if it has nothing else in it. It is
    immutable, like the pod made of it."""
    text = parsed.text if parsed.text is not None else documents(map(_without_dumped, parsed.documents))
    size = len(text.encode())
    if size > _LARGEST_DATA:
        raise UserError(
            "the manifest",
            f"has {size} bytes, and a ConfigMap holds {_LARGEST_DATA}",
            "put user data into a secret, and name that with secretRef",
        )
    flags = "".join(f"{word}\n" for word in words)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(by_content(vm.name, text + flags), parsed, vm),
        "immutable": True,
        "data": {paths.MANIFEST.rpartition("/")[2]: text, **({FLAGS: flags} if flags else {})},
    }


def _without_dumped(document: Mapping[str, Any]) -> PodObject:
    """Return an object without the fields that a cluster's dump adds and nobody reads."""
    kept = {name: value for name, value in document.items() if name != "status"}
    if isinstance(metadata := kept.get("metadata"), dict):
        kept["metadata"] = {name: value for name, value in metadata.items() if name != "managedFields"}
    cleaned: PodObject = plain(kept, "the manifest")
    return cleaned


def _state(parsed: ParsedVM, vm: Metadata) -> PodObject:
    """Return the claim for EFI's variables and the TPM's state."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(state_claim(vm.name), parsed, vm),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": written(_STATE_SIZE)}},
        },
    }


def _claim_template(parsed: ParsedVM, vm: Metadata, template: ClaimTemplate) -> PodObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(template.name, parsed, vm),
        "spec": {"spec": template.spec},
    }


def _pod(
    parsed: ParsedVM,
    manifest: str,
    restart: str,
    confinement: Confinement,
    *,
    image: str,
    block: frozenset[str],
    node_devices: str,
    flags: Sequence[str],
    card: MappedBARs,
) -> PodObject:
    vmi = parsed.instance
    vm, spec, guest, level = vmi.metadata, vmi.spec, guest_of(vmi), confinement.level
    needs = pod_needs(spec, guest, block)
    refuse_above(level, needs)
    needed = memory(spec, guest, card)
    state = {"persistentVolumeClaim": {"claimName": state_claim(vm.name)}} if keeps_state(spec) else {}
    mounted = mounts(spec, guest, manifest, state, block, vm.annotations.suspend_to)
    devices = volume_devices(mounted)
    handed = map(literal, handover(needs, level))
    metadata = _metadata(vm.name, parsed, vm)
    metadata["annotations"] = {**annotations(vm, spec, level, confinement.passed), MEMORY: explained(needed)}
    if level is not Level.PRIVILEGED:
        metadata["annotations"][LEVEL] = level.value
    if confinement.passed:
        metadata["annotations"][PASSED] = ",".join(confinement.passed)
    container: PodObject = {
        "name": _CONTAINER,
        "image": image,
        "command": ["gpu-launcher", "run", "--vm", paths.MANIFEST, *handed, *flags],
        "env": _environ(spec),
        **probes(spec),
        "resources": container_resources(spec, guest, needed, needs, node_devices),
        "securityContext": container_security(needs, confinement),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": volume_mounts(mounted),
        **({"volumeDevices": devices} if devices else {}),
    }
    fields = {
        **passed_on(spec, vmi.hostname),
        # At launcher.vm.paths.SERVICE_ACCOUNT, of which the guest's volume is made.
        "automountServiceAccountToken": any(volume.serviceAccount is not None for volume in spec.volumes),
        "containers": [container],
        "enableServiceLinks": False,
        "imagePullSecrets": pull_secrets(spec.volumes, spec.domain.firmware.kernelBoot),
        "resourceClaims": resource_claims(spec),
        "restartPolicy": restart,
        "securityContext": pod_security(needs, level),
        "serviceAccountName": service_account(spec),
        "terminationGracePeriodSeconds": grace(spec),
        "volumes": pod_volumes(mounted),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {name: value for name, value in sorted(fields.items()) if value is not None and value != []},
    }


def _show_metrics(pod: PodObject, port: int) -> None:
    """Have Prometheus find the pod's metrics: by the port's name, or without its operator by annotations."""
    metadata, (container,) = pod["metadata"], pod["spec"]["containers"]
    container["ports"] = [{"name": "metrics", "containerPort": port}]
    # The VM's own ones win: its guest may serve some, too.
    metadata["annotations"] = {_SCRAPED: "true", _SCRAPED_PORT: str(port), **metadata["annotations"]}


def _environ(spec: Spec) -> list[PodObject]:
    """Return the variables for the VM's namespace and name, as the pod knows them; the node's name, if the guest gets
    it; and where libvirt and swtpm look for their files when they do not run as root."""
    fields = {NAMESPACE: "metadata.namespace", NAME: "metadata.name"}
    if any(volume.downwardMetrics is not None for volume in spec.volumes):
        fields[NODE] = "spec.nodeName"
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *(
            {"name": name, "value": paths.LIBVIRT_ROOT}
            for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
        ),
    ]


def explained(needed: PodMemory) -> str:
    """Return the parts of the pod's memory, one a line, with their sum."""
    lines = [f"{written(part.size)} {part.what}" for part in needed.parts]
    lines.append(f"= {written(needed.request)} requested")
    if needed.hugepages:
        lines.append(f"{written(needed.hugepages)} the guest's memory, in huge pages of {written(needed.page)}")
    if needed.limit is not None and needed.limit != needed.request:
        lines.append(f"{written(needed.limit)} the limit")
    return "".join(f"{line}\n" for line in lines)


def _metadata(name: str, parsed: ParsedVM, vm: Metadata) -> PodObject:
    """Return an object's metadata, without a namespace if the manifest has none: kubectl's own applies then."""
    return {
        "name": name,
        **({"namespace": parsed.namespace} if parsed.namespace is not None else {}),
        "labels": labels(vm),
    }


#: CDI takes over a claim of this name that is there already, as for KubeVirt's (pkg/storage/types, dv.go).
_ADOPTS = "cdi.kubevirt.io/allowClaimAdoption"


def data_volumes(parsed: ParsedVM) -> tuple[PodObject, ...]:
    """Return the DataVolumes of the VM's templates, in the VM's namespace whatever a template says, as in KubeVirt."""
    if not isinstance(parsed.manifest, VirtualMachine):
        return ()
    return tuple(
        {
            "apiVersion": "cdi.kubevirt.io/v1beta1",
            "kind": "DataVolume",
            "metadata": {
                "name": template.metadata.name,
                **({"namespace": parsed.namespace} if parsed.namespace is not None else {}),
                **({"labels": dict(template.metadata.labels)} if template.metadata.labels else {}),
                "annotations": {_ADOPTS: "true", **template.metadata.annotations},
            },
            "spec": plain(template.spec, f"spec.dataVolumeTemplates[{index}].spec"),
        }
        for index, template in enumerate(parsed.manifest.spec.dataVolumeTemplates)
    )
