# Some thousand processes of Python are started: whoever has it set would have each compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test image dist lab lab-shell lab-versions bench figures protos lock lock-debian lock-base release-check release-notes

demo: .venv/ready  ## the whole way once: a node's sysfs to a running domain
	.venv/bin/python -m tests.demo

docs: .venv/ready  ## the site of docs/, in dist/site: open dist/site/index.html
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict

test: .venv/ready  ## every check: linters, types, import contracts, the suite; ARGS go to pytest
	PYTHONDONTWRITEBYTECODE= .venv/bin/pytest --numprocesses auto --dist worksteal $(ARGS)

image: .venv/image  ## both images where no registry can be reached: dist/gpu-*-VERSION.tar; for ARCHITECTURES; of Debian's next release with RELEASE=forky, in dist/forky; needs root
	deploy/build.sh $(ARCHITECTURES)
	$(if $(RELEASE),cd dist/$(RELEASE) && ../../).venv/bin/pytest tests/image --numprocesses 3 --dist worksteal

dist: .venv/ready  ## the files of a release, in dist/: wheel, sdist, what is applied, SBOM, checksums; as root both images
	@if [ "$$(id -u)" = 0 ]; then \
	    $(MAKE) .venv/image && images=$$(RELEASE= deploy/build.sh $(ARCHITECTURES)) && deploy/dist.sh dist $$images; \
	else \
	    echo "without the images, which take root" && deploy/dist.sh dist; \
	fi

release-check: .venv/ready  ## that the tag TAG, the version, the changelog and the URLs of REPOSITORY agree
	.venv/bin/python deploy/release.py check "$(TAG)" "$(REPOSITORY)"

release-notes: .venv/ready  ## what the changelog says of the version, into release-notes.md
	.venv/bin/python deploy/release.py notes >release-notes.md

lab: .venv/lab  ## the mission on real VFIO, with a real kubelet of KUBERNETES=1.36, and KubeVirt of KUBEVIRT=DIR; needs root; ARGS go to pytest
	.venv/bin/python -m tests.lab.build
	.venv/bin/pytest tests/lab --numprocesses 2 --dist loadfile --no-loadscope-reorder --tb=short $(ARGS) || \
	    { [ -s lab-logs/again ] && .venv/bin/pytest --tb=short $$(cat lab-logs/again); }

lab-shell: .venv/lab  ## a shell in that lab; MACHINE=modern, legacy, bare or kubevirt
	.venv/bin/python -m tests.lab.shell $(MACHINE)

lab-versions: .venv/lab  ## the mission and the DRA test with each Kubernetes that tests/lab/go has a file for; needs root
	.venv/bin/python -m tests.lab.versions

bench: .venv/ready  ## the figures of docs/figures.md
	@command -v virt-install >/dev/null || ./setup.sh 'virtinst|make bench times virt-install beside render'
	GRPC_VERBOSITY=NONE .venv/bin/python -m tests.bench

.venv/ready: setup.sh pyproject.toml requirements.txt
	./setup.sh

.venv/image: deploy/packages tests/image/packages .venv/ready
	./setup.sh "$$(cat deploy/packages tests/image/packages)"
	touch .venv/image

.venv/lab: tests/lab/packages .venv/ready
	./setup.sh "$$(cat tests/lab/packages)"
	touch .venv/lab

figures: .venv/ready  ## how large the project is: source, tests, docs, flags
	.venv/bin/python -m tests.figures

protos: .venv/ready  ## regenerate the modules of the kubelet's APIs and KubeVirt's hooks from their .proto files
	.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	    plugin/kubelet_api/v1beta1/deviceplugin.proto plugin/kubelet_api/podresources_v1/podresources.proto \
	    plugin/kubelet_api/pluginregistration_v1/registration.proto \
	    plugin/kubelet_api/dra_v1/dra.proto plugin/kubelet_api/dra_health_v1/health.proto
	.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. launcher/hook/api/*.proto

lock:  ## pin what pyproject.toml asks for; needs uv
	uv pip compile --quiet --universal --generate-hashes --all-extras --group dev \
	    --custom-compile-command 'make lock' pyproject.toml -o requirements.txt
	uv pip compile --quiet --generate-hashes --python-version 3.13 --python-platform linux \
	    --constraint requirements.txt --custom-compile-command 'make lock' \
	    deploy/plugin/requirements.in -o deploy/plugin/requirements.txt
	uv pip compile --quiet --generate-hashes --python-version 3.13 --python-platform linux \
	    --constraint requirements.txt --custom-compile-command 'make lock' \
	    deploy/launcher/requirements.in -o deploy/launcher/requirements.txt
	uv pip compile --quiet --universal --generate-hashes \
	    --constraint requirements.txt --custom-compile-command 'make lock' \
	    pyproject.toml -o deploy/krew/requirements.txt

lock-debian: .venv/image  ## pin the Debian packages of both images, by version and hash
	deploy/lock.sh

lock-base: .venv/image  ## pin the images' base by its digest; needs a registry
	deploy/base.sh docker://debian:trixie-slim
