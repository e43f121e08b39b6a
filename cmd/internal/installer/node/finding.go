package node

import "fmt"

// Status is the result of a check.
type Status string

// The values of Status.
const (
	OK   Status = "ok"
	Warn Status = "warn" // works, but with limits, or not for all pods
	Fail Status = "fail" // models do not work, or can be shown wrongly
)

// A Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Status  Status `json:"status"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // the command to run or the text to write
}

// Text returns the message with the fix.
func (f Finding) Text() string {
	if f.Fix == "" {
		return f.Message
	}
	return f.Message + "; fix: " + f.Fix
}

// Findings are the results of checks.
type Findings []Finding

// OK adds a check without a problem.
func (f *Findings) OK(check, format string, a ...any) {
	*f = append(*f, Finding{Check: check, Status: OK, Message: fmt.Sprintf(format, a...)})
}

// Warn adds a limit.
func (f *Findings) Warn(check, fix, format string, a ...any) {
	*f = append(*f, Finding{Check: check, Status: Warn, Fix: fix, Message: fmt.Sprintf(format, a...)})
}

// Fail adds a problem.
func (f *Findings) Fail(check, fix, format string, a ...any) {
	*f = append(*f, Finding{Check: check, Status: Fail, Fix: fix, Message: fmt.Sprintf(format, a...)})
}

// Failed returns the findings that are Fail.
func (f Findings) Failed() Findings {
	var out Findings
	for _, one := range f {
		if one.Status == Fail {
			out = append(out, one)
		}
	}
	return out
}
