// Command gpu-kubelet-plugin stands in for the program of that name in NVIDIA's DRA driver v0.4.1, whose image the tests cannot have:
// it publishes a node's GPUs, prepares claims, and rejects what that program rejects, with the same environment, files and names.
// The GPUs come from the driver's NVML, the CDI specs from NVIDIA's own library. It has no metrics, no MIG devices, no feature gates.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

const driverName = "gpu.nvidia.com"

// settings are what the environment says. `root` is the driver's root in this container, `hostRoot` on the host.
type settings struct {
	node, cdiRoot, hostRoot, root, hook, registry, folder string
	healthPort                                            int
}

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	s, err := read()
	if err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, folder := range []string{s.folder, s.cdiRoot} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
	}
	devices, err := enumerate(s.root)
	if err != nil {
		return fmt.Errorf("error enumerating all possible devices: %w", err)
	}
	// NVIDIA's program reads the boot's ID in /proc, which in a container is the machine's: the nodes of the tests share one machine.
	node, err := client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	plugin, err := newDriver(s, devices, node.Status.NodeInfo.BootID)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, plugin,
		kubeletplugin.KubeClient(client), kubeletplugin.NodeName(s.node), kubeletplugin.DriverName(driverName),
		kubeletplugin.RegistrarDirectoryPath(s.registry), kubeletplugin.PluginDataDirectoryPath(s.folder),
		kubeletplugin.Serialize(false), kubeletplugin.HealthService(false),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := serveHealth(ctx, s.healthPort); err != nil {
		return err
	}
	// One slice, which a node without GPUs has too.
	slice := resourceslice.Slice{Devices: slices.Collect(maps.Values(devices))}
	slices.SortFunc(slice.Devices, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{s.node: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func read() (*settings, error) {
	if flag.NArg() > 0 {
		return nil, fmt.Errorf("arguments not supported: %v", flag.Args())
	}
	// Without the last one NVIDIA's program uses the hook of its image, and this image has none.
	for _, required := range []string{"NODE_NAME", "IMAGE_NAME", "NVIDIA_CDI_HOOK_PATH"} {
		if os.Getenv(required) == "" {
			return nil, fmt.Errorf("%s is required", required)
		}
	}
	if gates := os.Getenv("FEATURE_GATES"); gates != "" {
		return nil, fmt.Errorf("this stand-in has no feature gates: %s", gates)
	}
	port, err := strconv.Atoi(value("HEALTHCHECK_PORT", "-1"))
	return &settings{
		node:       os.Getenv("NODE_NAME"),
		cdiRoot:    value("CDI_ROOT", "/etc/cdi"),
		hostRoot:   value("NVIDIA_DRIVER_ROOT", "/"),
		root:       value("DRIVER_ROOT_CTR_PATH", "/driver-root"),
		hook:       os.Getenv("NVIDIA_CDI_HOOK_PATH"),
		registry:   value("KUBELET_REGISTRAR_DIRECTORY_PATH", kubeletplugin.KubeletRegistryDir),
		folder:     filepath.Join(value("KUBELET_PLUGINS_DIRECTORY_PATH", kubeletplugin.KubeletPluginsDir), driverName),
		healthPort: port,
	}, err
}

func value(name, otherwise string) string {
	if set := os.Getenv(name); set != "" {
		return set
	}
	return otherwise
}

// serveHealth serves what probes ask for. It begins once kubelet can reach this program.
func serveHealth(ctx context.Context, port int) error {
	if port < 0 {
		return nil
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("failed to listen for healthcheck service: %w", err)
	}
	answers := health.NewServer()
	answers.SetServingStatus("liveness", grpc_health_v1.HealthCheckResponse_SERVING)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, answers)
	context.AfterFunc(ctx, server.Stop)
	go server.Serve(listener)
	return nil
}
