#!/bin/sh
# The files of a release, into a directory: the wheel and the sdist; what a cluster applies, as a chart and for kustomize;
# what krew installs; the site; SBOMs of what is installed with the wheel and of what the images have; and checksums of all, and of
# further files of that directory that are named, like images. The same commit gives the same bytes. RELEASES is the URL
# of the directory where they will be. Called by `make dist`, in the root of the repository: deploy/dist.sh DIRECTORY
# [FILE...]
set -eu
umask 022
out=$1
shift
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

.venv/bin/python -m hatchling build --directory "$scratch/release" >/dev/null 2>&1

# What is applied, and no more: the images are built in a clone.
bases=gpu-launcher-deploy-$version
mkdir "$scratch/$bases"
for base in $(find deploy -name kustomization.yaml | cut -d/ -f2 | sort -u); do
    (cd deploy && find "$base" -name '*.yaml' -exec cp --parents {} "$scratch/$bases" \;)
done
(cd deploy && find node plugin/components/*/*.json -type f -exec cp --parents {} "$scratch/$bases" \;)
archive() { # a directory of $scratch, as DIRECTORY.tar.gz or another file
    tar --create --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w \
        --mtime="@$SOURCE_DATE_EPOCH" --directory="$scratch" "$1" | gzip --no-name >"$scratch/release/${2:-$1.tar.gz}"
}
archive "$bases"

# As `helm package` and `helm push` would leave it.
cp -r deploy/chart "$scratch/gpu-plugin"
archive gpu-plugin "gpu-plugin-$version.tgz"
.venv/bin/python deploy/oci.py "$scratch/release/gpu-plugin-$version.tgz" "$scratch/release/gpu-plugin-chart-$version.tar"

plugin=kubectl-gpuvm-$version
mkdir "$scratch/$plugin"
cp LICENSE deploy/krew/kubectl-gpuvm deploy/krew/requirements.txt "$scratch/release"/*.whl "$scratch/$plugin"
archive "$plugin"
sum=$(sha256sum "$scratch/release/$plugin.tar.gz" | cut -d' ' -f1)
sed -e '/^#/d' -e "s|VERSION|$version|; s|SHA256|$sum|; s|RELEASES|${RELEASES:-RELEASES}|" \
    deploy/krew/gpuvm.yaml >"$scratch/release/gpuvm.yaml"

site=gpu-launcher-site-$version
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict --site-dir "$scratch/$site"
archive "$site"

# The versions that the tests have.
sed -n 's/^\([a-z0-9.-]*==[^ ;\\]*\).*/\1/p' requirements.txt >"$scratch/constraints"

# An environment with the wheel, and what it asks for. Once more by its name, so that the SBOM has no path of this machine.
.venv/bin/python -m venv --without-pip "$scratch/installed"
install() {
    .venv/bin/python -m pip --python "$scratch/installed/bin/python" --quiet --disable-pip-version-check install \
        --no-compile --constraint "$scratch/constraints" "$@"
}
install "$scratch/release"/*.whl
install --no-index --no-deps --force-reinstall --find-links "$scratch/release" "gpu-launcher==$version"
.venv/bin/cyclonedx-py environment --no-validate --pyproject pyproject.toml --output-reproducible \
    --output-file "$scratch/release/gpu-launcher-$version.cdx.json" "$scratch/installed/bin/python"
.venv/bin/python deploy/sbom.py "$version" "$scratch/release"

mkdir -p "$out"
cp "$scratch/release"/* "$out"
{
    ls "$scratch/release"
    for file in "$@"; do basename "$file"; done
} | sort | (cd "$out" && xargs sha256sum) >"$out/SHA256SUMS"
cat "$out/SHA256SUMS"
