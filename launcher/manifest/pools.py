"""Many VMs from one manifest: KubeVirt's VirtualMachinePool and VirtualMachineInstanceReplicaSet.

Kubernetes' own controllers run them: a StatefulSet, whose VMs keep their names as a pool's do, and a Deployment.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator

from launcher.fields.objects import Ignored, Object, Refused, Validator
from launcher.fields.scalars import Count, Text
from launcher.vm.spec import Named, Spec, TemplateMetadata, VirtualMachineSpec
from program.document import JSONObject


class Many(NamedTuple):
    """The controller that runs several VMs, as --as names it, and their number; None if the manifest does not say."""

    controller: Literal["statefulset", "deployment"]
    replicas: int | None


def _as(kind: type[Object]) -> Any:
    """Annotated[Mapping, _as(kind)]: this object in the JSON schema. It is checked later, in the VM made from it."""
    return BeforeValidator(lambda value: value, json_schema_input_type=kind)


class PoolTemplate(Object):
    metadata: Mapping[Text, Any] = {}
    spec: Annotated[Mapping[Text, Any], _as(VirtualMachineSpec)]


class ReplicaSetTemplate(Object):
    metadata: Annotated[Mapping[Text, Any], _as(TemplateMetadata)] = {}
    spec: Annotated[Mapping[Text, Any], _as(Spec)]


class _Spec(Object):
    replicas: Count | None = None
    selector: Annotated[Any, Ignored("the controller selects its pods by the VM's name")] = None
    paused: Annotated[None, Refused("a StatefulSet and a Deployment are not paused so", "scale it with --replicas")] = (
        None
    )


class NameGeneration(Object):
    appendIndexToConfigMapRefs: Annotated[
        None, Refused("all replicas have the same config maps", "write one manifest for each VM")
    ] = None
    appendIndexToSecretRefs: Annotated[
        None, Refused("all replicas have the same secrets", "write one manifest for each VM")
    ] = None


class PoolSpec(_Spec):
    virtualMachineTemplate: PoolTemplate
    nameGeneration: NameGeneration | None = None
    maxUnavailable: Annotated[Any, Ignored("a StatefulSet updates one VM at a time")] = None
    scaleInStrategy: Annotated[
        None, Refused("a StatefulSet removes the highest index first, and keeps its claims", "leave it out")
    ] = None
    updateStrategy: Annotated[
        None, Refused("a StatefulSet restarts the VMs one by one, from the highest index", "leave it out")
    ] = None
    autohealing: Annotated[None, Refused("the kubelet restarts a VM in its pod, with its claims", "leave it out")] = (
        None
    )


class ReplicaSetSpec(_Spec):
    template: ReplicaSetTemplate


class VirtualMachinePool(Object):
    apiVersion: Literal["pool.kubevirt.io/v1beta1", "pool.kubevirt.io/v1alpha1"]
    kind: Literal["VirtualMachinePool"]
    metadata: Named
    spec: PoolSpec
    status: Annotated[Any, Ignored("it is the controllers'")] = None


class VirtualMachineInstanceReplicaSet(Object):
    apiVersion: Literal["kubevirt.io/v1", "kubevirt.io/v1alpha3"]
    kind: Literal["VirtualMachineInstanceReplicaSet"]
    metadata: Named
    spec: ReplicaSetSpec
    status: Annotated[Any, Ignored("it is the controllers'")] = None


def taken_apart(document: JSONObject, subject: str, check: Validator) -> tuple[JSONObject, str, Many]:
    """Return the VirtualMachine that each VM of a pool or a replica set is, the text before its paths, and their
    number. UserError, by the path, for fields that are not converted."""
    spec: Mapping[str, Any]
    if document["kind"] == "VirtualMachinePool":
        pool = check(VirtualMachinePool, document, subject).spec
        metadata, spec = pool.virtualMachineTemplate.metadata, document["spec"]["virtualMachineTemplate"]["spec"]
        many, subject = Many("statefulset", pool.replicas), f"{subject}spec.virtualMachineTemplate."
    else:
        replica_set = check(VirtualMachineInstanceReplicaSet, document, subject).spec
        # Whichever of its VMs ends, there is another one: that is Always.
        metadata, spec = {}, {"runStrategy": "Always", "template": document["spec"]["template"]}
        many = Many("deployment", replica_set.replicas)
    theirs = document["metadata"]
    own = {key: theirs[key] for key in ("name", "generateName", "namespace") if key in theirs}
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {**metadata, **own}, "spec": spec}
    return vm, subject, many
