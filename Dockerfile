# The container image of ballast:
#
#     docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 -t registry.example/ballast:v0.1.0 .
#
# `make image` builds the same without an image builder, to the same bytes each time. What is in it is said in one place,
# contrib/image. It runs as root: ballastd mounts and writes the files of any user, and what it keeps is root's.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETARCH
ARG VERSION=dev
WORKDIR /src
COPY . .
RUN cd contrib/image && go run . -source ../.. -root /out -arch "$TARGETARCH" -version "$VERSION"

FROM scratch
COPY --from=build /out /
ENV PATH=/usr/local/bin
WORKDIR /
CMD ["ballastd"]
