package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/spf13/cobra"
)

// A docker config names a credential helper without the beginning of its program: "ballast" is helperProgram, which is
// a link to ballast and runs helperCommand.
// https://github.com/docker/docker-credential-helpers/blob/v0.9.5/README.md#development
const (
	helperProgram = "docker-credential-ballast"
	helperCommand = "docker-credential"
)

// noCredentials is what a helper prints that has none. Clients compare it.
const noCredentials = "credentials not found in native keychain"

// maxServer limits the address of a server that is read, in bytes.
const maxServer = 4 << 10

func (a *app) dockerCredentialCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   helperCommand + " COMMAND",
		Short: "credential helper, with which nerdctl pulls private models",
		Long: `The credential helper of docker config files for the facade. nerdctl looks for credentials by the address that asks
for them, which is the facade of ballastd for each closed registry. With this helper for that address, the facade gets
the credentials that the same file, and the other helpers that it names, have for the repository that is pulled.

To use it, link the program and add the address of the facade to the file (~/.docker/config.json, or config.json in
$DOCKER_CONFIG) of the user who runs nerdctl:

  ln -s "$(command -v ballast)" /usr/local/bin/` + helperProgram + `
  {"credHelpers": {"127.0.0.1:5757": "ballast"}}`,
	}
	c.AddCommand(&cobra.Command{
		Use:   "get",
		Short: "print what to give to the facade; its address is read from stdin",
		Long: `Print, in the form of credential helpers, what to give to the facade for the private repositories that are being
pulled. It is good at the facade of this node alone, for these repositories, and for five minutes. It needs root.`,
		Example: "  echo 127.0.0.1:5757 | ballast " + helperCommand + " get",
		Args:    noArgs(""),
		RunE: a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
			server, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxServer))
			if err != nil {
				return err
			}
			return a.credentialsFor(cmd.Context(), cl, strings.TrimSpace(string(server)))
		}),
	})
	return group(c)
}

// credentialsFor prints what a server gets: something if it is the facade.
func (a *app) credentialsFor(ctx context.Context, cl *wire.Client, server string) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	var found []wire.Credentials
	if facade := snippet.FacadeNames(cfg.Facade.Listen); cfg.Facade.Listen != "" && slices.Contains(facade, server) {
		if found, err = a.askedFor(ctx, cl, facade); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		fmt.Fprintln(a.stdout, noCredentials)
		return errSilent
	}
	p, err := cl.Login(ctx, wire.Login{Of: found})
	if err != nil {
		return err
	}
	return a.printJSON(struct{ ServerURL, Username, Secret string }{server, "ballast", p.Password})
}

// askedFor returns the credentials of the user for the repositories for which pulls were asked for some. facade are the
// addresses of the facade.
func (a *app) askedFor(ctx context.Context, cl *wire.Client, facade []string) (found []wire.Credentials, err error) {
	file, err := config.UserDockerConfig()
	if err != nil {
		return nil, err
	}
	asked, err := cl.Asked(ctx)
	if err != nil {
		return nil, err
	}
	credentials := remote.DockerCredentials(file)
	for _, name := range asked.Names {
		host, repository, _ := strings.Cut(name, "/")
		if slices.Contains(facade, host) { // whose entry is this command
			continue
		}
		c, err := credentials(host, repository)
		if err != nil {
			a.warn("%s: %v", name, err) // another one may be the one that is wanted
			continue
		}
		if c != (remote.Credentials{}) {
			found = append(found, wire.Credentials{Name: name, Username: c.Username, Secret: c.Secret})
		}
	}
	return found, nil
}
