#!/bin/sh -e
# What virt-handler reads of a node: what QEMU can do there, as libvirt tells it.
out=/var/lib/kubevirt-node-labeller
set -- --machine q35 --arch x86_64 --virttype kvm
virtqemud -d
virsh domcapabilities "$@" > $out/virsh_domcapabilities.xml
virsh hypervisor-cpu-baseline --features "$@" $out/virsh_domcapabilities.xml > $out/supported_features.xml
virsh capabilities > $out/capabilities.xml
