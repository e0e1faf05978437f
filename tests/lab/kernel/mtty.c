// SPDX-License-Identifier: GPL-2.0-only
/*
 * mtty, a sample of Linux: mediated devices that are serial ports, and can migrate. What is written to a port comes
 * back from it. Here their parent is the firmware's screen: gpu-plugin makes vGPUs of PCI devices, and Linux' own mtty
 * has a parent on no bus.
 */
#include <linux/mdev.h>
#include <linux/pci.h>

static int register_at_screen(struct mdev_parent *parent, struct device *unused, struct mdev_driver *driver,
			      struct mdev_type **types, unsigned int count)
{
	struct pci_dev *screen = pci_get_device(PCI_VENDOR_ID_CIRRUS, PCI_DEVICE_ID_CIRRUS_5446, NULL);

	return screen ? mdev_register_parent(parent, &screen->dev, driver, types, count) : -ENODEV;
}

#define mdev_register_parent register_at_screen
#include "samples/vfio-mdev/mtty.c"
