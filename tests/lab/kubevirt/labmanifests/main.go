// labmanifests DIR ADDRESS writes into DIR what virt-operator would apply to a cluster, for one whose virt-api listens at
// ADDRESS beside the API server: crds.json, base.json, handler.json and webhooks.json, and certificates for all of them,
// new each time, below certs/ too. It is compiled in a tree of KubeVirt's own source (../programs.sh).
package main

import (
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubevirt.io/kubevirt/pkg/certificates/triple/cert"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
	operator "kubevirt.io/kubevirt/pkg/virt-operator/util"
)

const namespace = "kubevirt"

var year = &metav1.Duration{Duration: 365 * 24 * time.Hour}

func check[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func write(directory, name string, objects []any) {
	documents := []string{}
	for _, object := range objects {
		documents = append(documents, string(check(json.Marshal(object))))
	}
	text := strings.Join(documents, "\n---\n") + "\n---\n"
	check(0, os.WriteFile(filepath.Join(directory, name+".json"), []byte(text), 0o644))
}

func main() {
	directory, address := os.Args[1], os.Args[2]
	check(0, os.MkdirAll(directory, 0o755))
	write(directory, "crds", crds())
	secrets, bundle := certificates(directory)
	write(directory, "base", append(accounts(), append(secrets, service(address)...)...))
	write(directory, "handler", []any{handler(address)})
	write(directory, "webhooks", webhooks(bundle))
}

func crds() (objects []any) {
	for _, make := range []func() (*extensionsv1.CustomResourceDefinition, error){
		components.NewKubeVirtCrd, components.NewVirtualMachineInstanceCrd, components.NewPresetCrd,
		components.NewReplicaSetCrd, components.NewVirtualMachineCrd, components.NewVirtualMachineInstanceMigrationCrd,
		components.NewVirtualMachineSnapshotCrd, components.NewVirtualMachineSnapshotContentCrd,
		components.NewVirtualMachineRestoreCrd, components.NewVirtualMachineInstancetypeCrd,
		components.NewVirtualMachineClusterInstancetypeCrd, components.NewVirtualMachinePoolCrd,
		components.NewMigrationPolicyCrd, components.NewVirtualMachinePreferenceCrd,
		components.NewVirtualMachineClusterPreferenceCrd, components.NewVirtualMachineExportCrd,
		components.NewVirtualMachineCloneCrd, components.NewVirtualMachineBackupCrd,
		components.NewVirtualMachineBackupTrackerCrd, components.NewPluginCrd,
	} {
		objects = append(objects, check(make()))
	}
	return objects
}

// The namespace, and who may do what in it.
func accounts() []any {
	objects := []any{
		&corev1.Namespace{
			TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: namespace},
		},
		components.NewKubeVirtPriorityClassCR(),
	}
	roles := append(rbac.GetAllCluster(), rbac.GetAllApiServer(namespace)...)
	roles = append(append(roles, rbac.GetAllController(namespace, true)...), rbac.GetAllHandler(namespace)...)
	for _, role := range roles {
		objects = append(objects, role)
	}
	return objects
}

// Secrets and ConfigMaps of one authority, whose certificate is returned as PEM.
func certificates(directory string) (objects []any, bundle []byte) {
	authorities := components.NewCACertSecrets(namespace)
	for _, secret := range authorities {
		check(0, components.PopulateSecretWithCertificate(secret, nil, year))
		objects = append(objects, secret)
	}
	authority := check(components.LoadCertificates(authorities[0]))
	for _, secret := range authorities {
		if secret.Name == components.KubeVirtCASecretName {
			authority = check(components.LoadCertificates(secret))
		}
	}
	bundle = cert.EncodeCertPEM(authority.Leaf)
	for _, configMap := range components.NewCAConfigMaps(namespace) {
		configMap.Data = map[string]string{components.CABundleKey: ""}
		if configMap.Name == components.KubeVirtCASecretName {
			configMap.Data[components.CABundleKey] = string(bundle)
		}
		objects = append(objects, configMap)
	}
	for _, secret := range components.NewCertSecrets(namespace, namespace) {
		check(0, components.PopulateSecretWithCertificate(secret, authority, year))
		objects = append(objects, secret)
		files := filepath.Join(directory, "certs", secret.Name)
		check(0, os.MkdirAll(files, 0o755))
		for name, data := range secret.Data {
			check(0, os.WriteFile(filepath.Join(files, name), data, 0o600))
		}
	}
	return objects, bundle
}

// virt-api's, which no pod answers.
func service(address string) []any {
	service := components.NewApiServerService(namespace)
	service.Spec.Selector = nil
	service.TypeMeta = metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}
	port := discoveryv1.EndpointPort{
		Name: ptr.To(service.Spec.Ports[0].Name), Port: ptr.To(int32(8443)), Protocol: ptr.To(corev1.ProtocolTCP),
	}
	ready := discoveryv1.EndpointConditions{Ready: ptr.To(true)}
	return []any{service, &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "virt-api-lab", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: ready}},
		Ports:       []discoveryv1.EndpointPort{port},
	}}
}

func handler(address string) any {
	config := &operator.KubeVirtDeploymentConfig{
		Namespace: namespace, Registry: "localhost", KubeVirtVersion: "lab",
		AdditionalProperties: map[string]string{operator.AdditionalPropertiesNamePullPolicy: "IfNotPresent"},
	}
	config.VirtHandlerImage, config.VirtLauncherImage = "localhost/virt-handler:lab", "localhost/virt-launcher:lab"
	daemonSet := components.NewHandlerDaemonSet(config, "", "", "")
	container := &daemonSet.Spec.Template.Spec.Containers[0]
	// Nothing makes the way of a Service there.
	container.Env = append(container.Env,
		corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: address},
		corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "6443"})
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		probe.TimeoutSeconds, probe.FailureThreshold = 60, 20 // its processor is emulated
	}
	return daemonSet
}

func webhooks(bundle []byte) (objects []any) {
	for _, aggregated := range components.NewVirtAPIAPIServices(namespace) {
		aggregated.Spec.CABundle = bundle
		objects = append(objects, aggregated)
	}
	validating := components.NewVirtAPIValidatingWebhookConfiguration(namespace)
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.CABundle = bundle
	}
	objects = append(objects, validating)
	for _, mutating := range []*admissionv1.MutatingWebhookConfiguration{
		components.NewVirtAPIMutatingWebhookConfiguration(namespace),
		components.NewVirtLauncherPodMutatingWebhookConfiguration(namespace),
	} {
		for i := range mutating.Webhooks {
			mutating.Webhooks[i].ClientConfig.CABundle = bundle
		}
		objects = append(objects, mutating)
	}
	return objects
}
