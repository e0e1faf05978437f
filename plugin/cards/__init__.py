"""What the plugin decides, from values to values: `names`, `config` and `inventory` say what is on offer; `nodes`,
`holders` and `health` what keeps a device from being handed out; `snapshot`, `allocation` and `preference` answer."""
