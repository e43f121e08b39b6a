//go:build kserve

// Command kserve-pod adds a model to a pod as KServe does, with its code: the webhook for the pods of InferenceServices
// (StorageInitializerInjector.InjectModelcar) and the controller of LLMInferenceServices (attachOciNativeModelArtifact) make this
// call. It reads the pod from its standard input and writes the result to its standard output.
//
//	kserve-pod STORAGE-URI CONTAINER <POD >POD
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/kserve/kserve/pkg/constants"
	"github.com/kserve/kserve/pkg/utils"
	corev1 "k8s.io/api/core/v1"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "kserve-pod:", err)
		os.Exit(1)
	}
}

func run(uri, container string) error {
	var p corev1.Pod
	if err := json.NewDecoder(os.Stdin).Decode(&p); err != nil {
		return err
	}
	mode, normal, _ := utils.ParseOciScheme(uri)
	if mode != "native" {
		return fmt.Errorf("%s is not for image volumes", uri)
	}
	if err := utils.ConfigureOciNativeToContainer(normal, &p.Spec, container, constants.DefaultModelLocalMountPath, nil); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p)
}
