/* What IOMMUFD needs of the kernel's interval trees beyond what Debian's is built with; the rest the kernel exports. */
#include <linux/export.h>
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL_GPL(symbol)
#include "../../../lib/interval_tree.c"
