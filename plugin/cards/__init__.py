"""Decisions about devices: `names`, `config` and `inventory` say which are on offer; `nodes` what keeps a
device from being handed out; `preference` chooses among the free ones."""
