# The container image of ballast:
#
#     docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 \
#       --build-arg GO=golang:1.26@sha256:... -t registry.example/ballast:v0.1.0 .
#
# GO is an image of Go by its digest, which `docker buildx imagetools inspect golang:1.26` prints: what a tag names can change.
# `make image` builds the same without an image builder, to the same bytes each time. What is in it is said in one place,
# contrib/release. It runs as root: ballastd mounts and writes the files of any user, and what it keeps is root's.
ARG GO
FROM --platform=$BUILDPLATFORM ${GO} AS build
ARG GO
RUN case "$GO" in *@sha256:*) ;; *) echo "GO=$GO has no digest"; exit 1 ;; esac
ARG TARGETARCH
ARG VERSION=dev
WORKDIR /src
COPY . .
RUN cd contrib/release && go run . -o /out -only root -arch "$TARGETARCH" -version "$VERSION"

FROM scratch
COPY --from=build /out /
ENV PATH=/usr/local/bin
WORKDIR /
CMD ["ballastd"]
