"""Decisions about devices: `names`, `config` and `inventory` say which are on offer; `nodes` has the device nodes that
each needs; `preference` chooses among free devices."""
