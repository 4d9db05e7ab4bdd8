package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/Masterminds/semver/v3"
	nvdev "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"
)

var (
	libraryFolders = []string{
		"", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	}
	programFolders = []string{"", "opt/bin", "usr/bin", "usr/sbin", "bin", "sbin"}
)

// enumerate returns the GPUs by name. Like NVIDIA's program it fails without a driver, and looks for devices once.
func enumerate(root string) (map[string]resourceapi.Device, error) {
	library, err := find(root, "libnvidia-ml.so.1", libraryFolders)
	if err != nil {
		return nil, fmt.Errorf("failed to locate driver libraries: %w", err)
	}
	if _, err := find(root, "nvidia-smi", programFolders); err != nil {
		return nil, fmt.Errorf("failed to locate nvidia-smi: %w", err)
	}
	api := nvml.New(nvml.WithLibraryPath(library))
	if ret := api.InitWithFlags(nvml.INIT_FLAG_NO_GPUS); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("error initializing NVML: %w", ret)
	}
	// Nothing of the driver stays open: it can be replaced while this program is running.
	defer api.Shutdown()
	driver, ret := api.SystemGetDriverVersion()
	cuda, ret2 := api.SystemGetCudaDriverVersion()
	if err := firstError(ret, ret2); err != nil {
		return nil, fmt.Errorf("error getting the versions: %w", err)
	}
	versions := map[resourceapi.QualifiedName]string{
		"driverVersion": driver, "cudaDriverVersion": fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10),
	}
	devices := map[string]resourceapi.Device{}
	err = nvdev.New(api).VisitDevices(func(index int, gpu nvdev.Device) error {
		found, err := inspect(gpu, versions)
		if err != nil {
			return fmt.Errorf("error getting info for GPU %d: %w", index, err)
		}
		devices[found.Name] = *found
		return nil
	})
	return devices, err
}

// find returns the path of a file in the driver's root, with its links resolved in this container.
func find(root, name string, folders []string) (string, error) {
	for _, folder := range folders {
		path, err := filepath.EvalSymlinks(filepath.Join(root, folder, name))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("error locating %q", name)
}

func firstError(results ...nvml.Return) error {
	for _, ret := range results {
		if ret != nvml.SUCCESS {
			return ret
		}
	}
	return nil
}

func inspect(gpu nvdev.Device, versions map[resourceapi.QualifiedName]string) (*resourceapi.Device, error) {
	minor, ret := gpu.GetMinorNumber()
	uuid, ret2 := gpu.GetUUID()
	name, ret3 := gpu.GetName()
	memory, ret4 := gpu.GetMemoryInfo()
	architecture, err := gpu.GetArchitectureAsString()
	brand, err2 := gpu.GetBrandAsString()
	capability, err3 := gpu.GetCudaComputeCapabilityAsString()
	addressing, err4 := gpu.GetAddressingModeAsString()
	address, err5 := gpu.GetPCIBusID()
	mig, err6 := gpu.IsMigEnabled()
	if err := errors.Join(firstError(ret, ret2, ret3, ret4), err, err2, err3, err4, err5, err6); err != nil {
		return nil, err
	}
	if mig {
		return nil, errors.New("this stand-in does not publish MIG devices")
	}
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range map[resourceapi.QualifiedName]string{
		"type": "gpu", "uuid": uuid, "productName": name, "brand": brand, "architecture": architecture, "addressingMode": addressing,
	} {
		// Not every GPU has an addressing mode.
		if value != "" {
			all[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	versions["cudaComputeCapability"] = capability
	for name, value := range versions {
		// Semantic versions have three parts, without zeros in front of a number.
		parsed, err := semver.NewVersion(value)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", name, value, err)
		}
		value = parsed.String()
		all[name] = resourceapi.DeviceAttribute{VersionValue: &value}
	}
	bus, err := deviceattribute.GetPCIBusIDAttribute(address)
	if err != nil {
		return nil, err
	}
	all[bus.Name] = bus.Value
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(address); err != nil {
		klog.Warningf("error getting PCIe root for GPU %d, continuing without attribute: %v", minor, err)
	} else {
		all[root.Name] = root.Value
	}
	capacity := resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(memory.Total), resource.BinarySI)}
	return &resourceapi.Device{
		Name:       fmt.Sprintf("gpu-%d", minor),
		Attributes: all,
		Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": capacity},
	}, nil
}
