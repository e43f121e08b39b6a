package setup

import "context"

// Unreachable returns the images that the node needs and that could not be pulled while ballastd is
// stopped; none if the host was not set up.
func Unreachable(ctx context.Context, root string) ([]string, error) {
	o, err := Recorded(root)
	if err != nil {
		return nil, err
	}
	o.Host = root
	v, err := look(ctx, &o)
	if err != nil || v.record == nil {
		return nil, err
	}
	closed, err := v.closed()
	if err != nil {
		return nil, err
	}
	stuck, _, open, err := v.heal(&o, closed)
	for _, registry := range open {
		if !v.exists(v.hostsFile(registry)) {
			stuck = append(stuck, "an image that the node needs is of "+registry+", and _default is closed")
		}
	}
	return stuck, err
}
