# The images of the operator and the probe, built from source:
#
#   docker build --target gpu-operator --tag registry.example.com/gpu/gpu-operator:0.2.0 .
#   docker build --target nvml-probe --tag registry.example.com/gpu/nvml-probe:0.2.0 .
#
# `docker buildx build --platform linux/amd64,linux/arm64` builds both architectures: the compiler runs on the architecture of the
# build machine. podman build and buildah bud take the same arguments. `cargo xtask release` builds both images for both
# architectures, without a container engine.
#
# BUILDER and BASE must be of the same release: the probe loads NVIDIA's library at run time, so the programs are linked
# dynamically, and the C library of BASE must not be older than that of BUILDER.
#
# Both have tags, which their registries can move: no digest of them has been verified. `cargo xtask release` uses neither. It makes both
# from packages with the signatures of the distribution, or takes those of --builder and --base: name these by digest. The same holds for
# a build of your own: --build-arg BUILDER=rust:1.95-bookworm@sha256:… --build-arg BASE=gcr.io/distroless/cc-debian12@sha256:…
ARG BUILDER=rust:1.95-bookworm
ARG BASE=gcr.io/distroless/cc-debian12

# What all images have in common.
FROM ${BASE} AS base
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.description="Part of the gpu-operator, which manages the NVIDIA GPU nodes of a Kubernetes cluster." \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.licenses=Apache-2.0
# A numeric non-root user, so that pods can set runAsNonRoot.
USER 65532:65532
ENTRYPOINT ["/usr/bin/entrypoint"]

# The tests' images (--target prebuilt): the context is a directory that contains the program.
FROM base AS prebuilt
ARG BINARY
COPY ${BINARY} /usr/bin/entrypoint

FROM --platform=${BUILDPLATFORM} ${BUILDER} AS build
ARG TARGETARCH
ARG REVISION=unknown
# Set to true if the dependencies are in CARGO_HOME already, mounted as a volume.
ARG CARGO_NET_OFFLINE=false
WORKDIR /source
COPY . .
RUN GPU_OPERATOR_REVISION=${REVISION} CARGO_NET_OFFLINE=${CARGO_NET_OFFLINE} images/build.sh "${TARGETARCH}" /programs

FROM base AS licensed
COPY --from=build /source/LICENSE /source/NOTICE /usr/share/doc/gpu-operator/

FROM licensed AS nvml-probe
LABEL org.opencontainers.image.title=nvml-probe
COPY --from=build /programs/nvml-probe /usr/bin/entrypoint

FROM licensed AS gpu-operator
LABEL org.opencontainers.image.title=gpu-operator
COPY --from=build /programs/gpu-operator /usr/bin/entrypoint
