package resolve_test

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
)

func TestCartonAddress(t *testing.T) {
	t.Parallel()
	hosts := map[string]string{"carton.example": "carton+https://models.example/{repository}/x/{tag}.carton"}
	for in, want := range map[string]string{
		"carton.example/a/b:v1":            "https://models.example/a/b/x/v1.carton",
		"carton.example/a":                 "https://models.example/a/x/latest.carton",
		"other.example/a":                  "",
		"carton+https://h.example/y?z=%20": "https://h.example/y?z=%20",
	} {
		ref, err := remote.ParseRef(in)
		if err != nil {
			t.Fatal(err)
		}
		if f, got := (&resolve.Resolver{Archives: hosts}).Archive(ref); got != want || (f != nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", in, got, f, want)
		}
	}
}
