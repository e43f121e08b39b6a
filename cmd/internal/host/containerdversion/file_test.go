package containerdversion

import "testing"

// TestDropIn has the combinations that the end-to-end tests have run.
func TestDropIn(t *testing.T) {
	for _, tt := range []struct {
		v          Version
		main, want File
	}{
		{Version{1, 7}, File{}, File{2, true}},
		{Version{1, 7}, File{2, true}, File{2, true}},
		{Version{2, 0}, File{}, File{3, false}},
		{Version{2, 2}, File{3, false}, File{3, false}},
		{Version{2, 2}, File{2, true}, File{2, true}},
		{Version{2, 2}, File{2, false}, File{2, false}},
		{Version{2, 3}, File{2, true}, File{3, false}},
		{Version{2, 4}, File{4, false}, File{3, false}},
	} {
		if got := tt.v.DropIn(tt.main); got != tt.want {
			t.Errorf("%v, main file %+v: got %+v, want %+v", tt.v, tt.main, got, tt.want)
		}
	}
}
