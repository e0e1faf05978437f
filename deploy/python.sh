#!/bin/sh
# What the stages of both images do with Python; none of them is kept.
#
#     python.sh dependencies PROGRAM [OPTION ...]    /requirements.txt in /opt/PROGRAM, an environment with these options
#     python.sh program PROGRAM                      the packages in /program, in /image where that environment has them,
#                                                    with the version of /program/pyproject.toml
#
# All is compiled here: where it runs, nothing can be written.
set -eu
step=$1
environment=/opt/$2
shift 2
compile() { python3 -m compileall -q --invalidation-mode unchecked-hash "$@"; }

case $step in
dependencies)
    python3 -m venv --without-pip "$@" "$environment"
    python3 -m pip --python "$environment/bin/python" install --quiet --no-cache-dir --no-compile \
        --only-binary :all: --require-hashes --requirement /requirements.txt
    compile "$environment/lib"
    ;;
program)
    packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "/image$packages"
    cp -R /program/*/ "/image$packages"
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' /program/pyproject.toml)
    mkdir "/image$packages/gpu_launcher-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: gpu-launcher\nVersion: %s\n' "$version" \
        > "/image$packages/gpu_launcher-$version.dist-info/METADATA"
    find /image -name __pycache__ -prune -exec rm -r {} +
    compile -s /image -p / "/image$packages"
    ;;
esac
