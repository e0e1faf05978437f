// SPDX-License-Identifier: GPL-2.0
/*
 * What NVIDIA's driver of vGPUs shows on Linux 6.8 and later, for the lab: docs/decisions/0019-vgpus.md.
 *
 * It takes an SR-IOV device that driver_override gives it, and calls that and its virtual functions an L40S. A virtual
 * function has nvidia/, where its type is set, and is given to guests by VFIO: the guest gets the device that QEMU
 * emulates, by the IDs of a card.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>

#define L40S 0x26b9
#define BOARD 0x1851
#define MEMORY 48 /* gigabytes */

struct type {
	int number;
	const char *name;
	int size; /* gigabytes */
	int most; /* of a card */
	bool needs_instance;
};

/* The last one needs a GPU instance, of which the card has none. */
static const struct type types[] = {
	{ 1145, "NVIDIA L40S-1B", 1, 32 },
	{ 1152, "NVIDIA L40S-8Q", 8, 6 },
	{ 1153, "NVIDIA L40S-8A", 8, 6 },
	{ 1154, "NVIDIA L40S-12Q", 12, 4 },
	{ 1155, "NVIDIA L40S-24Q", 24, 2 },
	{ 1156, "NVIDIA L40S-48Q", 48, 1 },
	{ 1200, "NVIDIA L40S-1-24Q", 24, 1, true },
};

struct vgpu {
	struct vfio_pci_core_device core;
	struct list_head node;
	const struct type *type; /* none yet */
	int place; /* in gigabytes, of the card's memory */
	bool is_open;
};

static LIST_HEAD(vgpus); /* the virtual functions of all cards */
static DEFINE_MUTEX(lock); /* of that list and what is in it */

static bool of_one_card(const struct vgpu *one, const struct vgpu *other)
{
	return pci_physfn(one->core.pdev) == pci_physfn(other->core.pdev);
}

/* All vGPUs of a card are of one size, as many as their type allows, and have no more memory than there is. */
static bool is_creatable(const struct vgpu *vgpu, const struct type *type)
{
	const struct vgpu *other;
	int left = MEMORY, made = 0;

	if (vgpu->type || type->needs_instance)
		return false;
	list_for_each_entry(other, &vgpus, node) {
		if (!of_one_card(vgpu, other) || !other->type)
			continue;
		if (other->type->size != type->size)
			return false;
		left -= other->type->size;
		made += other->type == type;
	}
	return type->size <= left && made < type->most;
}

static bool is_taken(const struct vgpu *vgpu, int place)
{
	const struct vgpu *other;

	list_for_each_entry(other, &vgpus, node)
		if (of_one_card(vgpu, other) && other->type && other->place == place)
			return true;
	return false;
}

static int set_type(struct vgpu *vgpu, int number)
{
	int place = 0;

	if (!number && vgpu->is_open)
		return -EPERM;
	if (!number) {
		vgpu->type = NULL;
		return 0;
	}
	for (const struct type *type = types; type < types + ARRAY_SIZE(types); type++) {
		if (type->number != number)
			continue;
		if (type->needs_instance)
			return -EIO;
		if (!is_creatable(vgpu, type))
			continue;
		while (is_taken(vgpu, place))
			place += type->size;
		vgpu->place = place;
		vgpu->type = type;
	}
	return 0; /* also where it cannot be made: who reads it back sees that */
}

static struct vgpu *of_device(struct device *device)
{
	return container_of((struct vfio_pci_core_device *)dev_get_drvdata(device), struct vgpu, core);
}

static ssize_t current_vgpu_type_show(struct device *device, struct device_attribute *file, char *text)
{
	guard(mutex)(&lock);
	return sysfs_emit(text, "%d\n", of_device(device)->type ? of_device(device)->type->number : 0);
}

static ssize_t current_vgpu_type_store(struct device *device, struct device_attribute *file, const char *text,
				       size_t length)
{
	int number, error = kstrtoint(text, 10, &number);

	guard(mutex)(&lock);
	if (!error)
		error = set_type(of_device(device), number);
	return error ?: length;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static ssize_t creatable_vgpu_types_show(struct device *device, struct device_attribute *file, char *text)
{
	int length = sysfs_emit(text, "ID    : vGPU Name\n");

	guard(mutex)(&lock);
	for (const struct type *type = types; type < types + ARRAY_SIZE(types); type++)
		if (is_creatable(of_device(device), type))
			length += sysfs_emit_at(text, length, "%-6d: %s\n", type->number, type->name);
	return length;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t gpu_instance_id_show(struct device *device, struct device_attribute *file, char *text)
{
	guard(mutex)(&lock);
	return of_device(device)->type ? sysfs_emit(text, "0\n") : -ENXIO;
}
static DEVICE_ATTR_RO(gpu_instance_id);

static ssize_t placement_id_show(struct device *device, struct device_attribute *file, char *text)
{
	guard(mutex)(&lock);
	return of_device(device)->type ? sysfs_emit(text, "%d\n", of_device(device)->place) : -ENXIO;
}
static DEVICE_ATTR_RO(placement_id);

static struct attribute *files[] = {
	&dev_attr_current_vgpu_type.attr,
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_gpu_instance_id.attr,
	&dev_attr_placement_id.attr,
	NULL,
};
static const struct attribute_group directory = { .name = "nvidia", .attrs = files };

static int vgpu_open(struct vfio_device *device)
{
	struct vgpu *vgpu = container_of(device, struct vgpu, core.vdev);
	int error;

	guard(mutex)(&lock);
	if (!vgpu->type)
		return -EINVAL;
	error = vfio_pci_core_enable(&vgpu->core);
	if (error)
		return error;
	vfio_pci_core_finish_enable(&vgpu->core);
	vgpu->is_open = true;
	return 0;
}

static void vgpu_close(struct vfio_device *device)
{
	struct vgpu *vgpu = container_of(device, struct vgpu, core.vdev);

	vfio_pci_core_close_device(device);
	guard(mutex)(&lock);
	vgpu->is_open = false;
}

static const struct vfio_device_ops operations = {
	.name = "nvidia-vgpu-vfio",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = vgpu_open,
	.close_device = vgpu_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
};

static void call_l40s(struct pci_dev *function)
{
	function->vendor = function->subsystem_vendor = PCI_VENDOR_ID_NVIDIA;
	function->device = L40S;
	function->subsystem_device = BOARD;
	function->class = PCI_CLASS_DISPLAY_3D << 8;
}

/* Before any driver sees a new virtual function: that of the emulated device would take it by its class. */
static int on_bus(struct notifier_block *block, unsigned long event, void *device)
{
	struct pci_dev *function = to_pci_dev(device);

	if (event == BUS_NOTIFY_ADD_DEVICE && function->is_virtfn && pci_physfn(function)->device == L40S)
		call_l40s(function);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = on_bus };

static int probe(struct pci_dev *function, const struct pci_device_id *id)
{
	struct vgpu *vgpu;
	int error;

	if (!function->is_virtfn) {
		call_l40s(function);
		return 0;
	}
	vgpu = vfio_alloc_device(vgpu, core.vdev, &function->dev, &operations);
	if (IS_ERR(vgpu))
		return PTR_ERR(vgpu);
	dev_set_drvdata(&function->dev, &vgpu->core);
	error = vfio_pci_core_register_device(&vgpu->core);
	if (error)
		goto put;
	scoped_guard(mutex, &lock)
		list_add(&vgpu->node, &vgpus);
	error = device_add_group(&function->dev, &directory);
	if (error)
		goto unlist;
	return 0;
unlist:
	scoped_guard(mutex, &lock)
		list_del(&vgpu->node);
	vfio_pci_core_unregister_device(&vgpu->core);
put:
	vfio_put_device(&vgpu->core.vdev);
	return error;
}

static void remove(struct pci_dev *function)
{
	struct vgpu *vgpu;

	if (!function->is_virtfn)
		return;
	vgpu = of_device(&function->dev);
	device_remove_group(&function->dev, &directory);
	/* Waits for who has it open. */
	vfio_pci_core_unregister_device(&vgpu->core);
	scoped_guard(mutex, &lock)
		list_del(&vgpu->node);
	vfio_put_device(&vgpu->core.vdev);
}

static const struct pci_device_id ids[] = { { PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, L40S) }, {} };

/* Without sriov_configure: a write to sriov_numvfs is refused, as NVIDIA's driver does. */
static struct pci_driver driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	.driver_managed_dma = true,
};

static int __init nvidia_init(void)
{
	int error = bus_register_notifier(&pci_bus_type, &notifier);

	if (error)
		return error;
	error = pci_register_driver(&driver);
	if (error)
		bus_unregister_notifier(&pci_bus_type, &notifier);
	return error;
}
module_init(nvidia_init);

static void __exit nvidia_exit(void)
{
	pci_unregister_driver(&driver);
	bus_unregister_notifier(&pci_bus_type, &notifier);
}
module_exit(nvidia_exit);

MODULE_DESCRIPTION("A stand-in for NVIDIA's driver of vGPUs");
MODULE_LICENSE("GPL");
