import os

# libvirt and the tests fork. grpc's own handlers of a fork start its threads in the child, which may end or hang before
# it does its work (grpc/grpc#43055): beside a busy channel 4 of 8 children hung, without the handlers none of 4,500.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
