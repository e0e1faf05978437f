#!/bin/sh
# Writes the digest of an image, or of the index of images that it is, as the base into both Containerfiles and as the
# container of the release's build. Called by `make lock-base`, in the root of the repository: deploy/base.sh REFERENCE, as
# skopeo(1) names images.
set -eu
manifest=$(mktemp)
trap 'rm "$manifest"' EXIT
skopeo inspect --raw "$1" >"$manifest"
base=debian@sha256:$(sha256sum <"$manifest" | cut -d' ' -f1)
sed -i "s|debian@sha256:[0-9a-f]*|$base|" deploy/*/Containerfile .github/workflows/release.yaml
echo "$base"
