# The image of the operator or the probe: a single program and a C library. The probe loads NVIDIA's library at run time, so
# the program is linked dynamically, and the C library of the base must not be older than that of the build machine.
#
#   cargo build --release
#   docker build --build-arg BINARY=gpu-operator --tag registry.example.com/gpu-operator:v0.1.0 target/release --file Dockerfile
#   docker build --build-arg BINARY=nvml-probe --tag registry.example.com/nvml-probe:v0.1.0 target/release --file Dockerfile
#
# podman build and buildah bud take the same arguments. The context is the directory that contains the program.
ARG BASE=gcr.io/distroless/cc-debian12
FROM ${BASE}
ARG BINARY
COPY ${BINARY} /usr/bin/entrypoint
# A numeric non-root user, so that pods can set runAsNonRoot.
USER 65532:65532
ENTRYPOINT ["/usr/bin/entrypoint"]
