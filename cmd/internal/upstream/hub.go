package upstream

import (
	"cmp"
	"log/slog"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/remote"
)

// withHub lets a client read the Hub of Hugging Face, with the token of the environment as the node's. It is read
// again for each use: others renew it.
func withHub(o *remote.Options, log *slog.Logger) {
	hub, err := huggingface.New(cmp.Or(config.Hub().Endpoint, huggingface.DefaultEndpoint))
	if err != nil {
		log.Warn("repositories of the Hub can not be read; HF_ENDPOINT is wrong", "err", err)
		return
	}
	o.Dialects = map[string]remote.Dialect{}
	for _, host := range huggingface.Hosts {
		o.Dialects[host] = hub
	}
	stored := o.Credentials
	o.Credentials = func(host string) (c remote.Credentials, err error) {
		if stored != nil {
			c, err = stored(host)
		}
		if err == nil && c == (remote.Credentials{}) && slices.Contains(huggingface.Hosts, host) {
			c = huggingface.Credentials(config.Hub().Token)
		}
		return c, err
	}
}
