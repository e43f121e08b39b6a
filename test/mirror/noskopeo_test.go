//go:build !containers_image_openpgp

package mirror

var skopeo []mirror
