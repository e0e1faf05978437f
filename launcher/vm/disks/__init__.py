"""The guest's disks and file systems; launcher.vm.volumes has what is behind them."""
