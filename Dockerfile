# The operator's and the probe's image: one program on a C library. The probe loads NVIDIA's library at run time, so
# the program is linked dynamically, and the base must not have an older C library than the machine that built it.
#
#   cargo build --release
#   docker build --build-arg BINARY=gpu-operator --tag registry.example.com/gpu-operator:v0.1.0 target/release --file Dockerfile
#   docker build --build-arg BINARY=nvml-probe --tag registry.example.com/nvml-probe:v0.1.0 target/release --file Dockerfile
#
# podman build and buildah bud take the same arguments. The context is the folder that holds the program.
ARG BASE=gcr.io/distroless/cc-debian12
FROM ${BASE}
ARG BINARY
COPY ${BINARY} /usr/bin/entrypoint
# nobody's own number, so that a pod may say runAsNonRoot.
USER 65532:65532
ENTRYPOINT ["/usr/bin/entrypoint"]
