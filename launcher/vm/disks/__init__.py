"""What the guest has as disks and file systems; what is behind them is in launcher.vm.volumes."""
