package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"github.com/sirupsen/logrus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	cdiVendor = "k8s." + driverName
	cdiClass  = "claim"
)

// checkpoint is what outlives this program: the claims that were prepared since the node's boot.
type checkpoint struct {
	NodeBootID     string                  `json:"nodeBootID"`
	PreparedClaims map[types.UID]*prepared `json:"preparedClaims"`
}

type prepared struct {
	Devices []kubeletplugin.Device `json:"devices"`
	// Exclusive are the devices that no other claim may have: those without admin access.
	Exclusive []string `json:"exclusive"`
}

// driver answers kubelet.
type driver struct {
	*settings
	devices map[string]resourceapi.Device
	mutex   sync.Mutex
	checkpoint
}

func newDriver(s *settings, devices map[string]resourceapi.Device, boot string) (*driver, error) {
	d := &driver{settings: s, devices: devices}
	content, err := os.ReadFile(d.checkpointFile())
	if err == nil {
		err = json.Unmarshal(content, &d.checkpoint)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("unable to get checkpoint: %w", err)
	}
	if d.NodeBootID != boot || d.PreparedClaims == nil {
		klog.Infof("new checkpoint: boot ID %q, before %q", boot, d.NodeBootID)
		d.checkpoint = checkpoint{NodeBootID: boot, PreparedClaims: map[types.UID]*prepared{}}
	}
	return d, d.save()
}

func (d *driver) checkpointFile() string { return filepath.Join(d.folder, "checkpoint.json") }

func (d *driver) save() error {
	content, err := json.Marshal(d.checkpoint)
	if err == nil {
		err = os.WriteFile(d.checkpointFile()+".new", content, 0o600)
	}
	if err != nil {
		return err
	}
	return os.Rename(d.checkpointFile()+".new", d.checkpointFile())
}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		if err != nil {
			err = fmt.Errorf("error preparing devices for claim %s/%s:%s: %w", claim.Namespace, claim.Name, claim.UID, err)
		}
		klog.Infof("prepared claim %s/%s: %v, %v", claim.Namespace, claim.Name, devices, err)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if known := d.PreparedClaims[claim.UID]; known != nil {
		return known.Devices, nil
	}
	allocation := claim.Status.Allocation.Devices
	for _, config := range allocation.Config {
		// NVIDIA's program has parameters of time slicing and MPS, each behind a feature gate.
		if config.Opaque != nil && config.Opaque.Driver == driverName {
			return nil, fmt.Errorf("%s needs a feature gate that is not enabled", config.Opaque.Parameters.Raw)
		}
	}
	generator, err := d.generator()
	if err != nil {
		return nil, err
	}
	var now prepared
	var described []specs.Device
	for _, result := range allocation.Results {
		if result.Driver != driverName {
			continue
		}
		if result.AdminAccess == nil || !*result.AdminAccess {
			for uid, other := range d.PreparedClaims {
				if slices.Contains(other.Exclusive, result.Device) {
					return nil, fmt.Errorf("requested device %s is already allocated to different claim %s", result.Device, uid)
				}
			}
			now.Exclusive = append(now.Exclusive, result.Device)
		}
		found, known := d.devices[result.Device]
		if !known {
			return nil, fmt.Errorf("allocatable not found for device %q", result.Device)
		}
		name := fmt.Sprintf("%s-%s", claim.UID, result.Device)
		of, err := generator.GetDeviceSpecsByID(*found.Attributes["uuid"].StringValue)
		if err != nil {
			return nil, fmt.Errorf("unable to get device spec for %s: %w", name, err)
		}
		of[0].Name = name
		described = append(described, of[0])
		now.Devices = append(now.Devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			CDIDeviceIDs: []string{parser.QualifiedName(cdiVendor, cdiClass, name)},
		})
	}
	if err := d.writeSpec(generator, claim.UID, described); err != nil {
		return nil, fmt.Errorf("unable to create CDI spec file for claim: %w", err)
	}
	d.PreparedClaims[claim.UID] = &now
	return now.Devices, d.save()
}

// generator finds the driver's files each time: they can be replaced while this program is running.
func (d *driver) generator() (nvcdi.Interface, error) {
	library, err := find(d.root, "libnvidia-ml.so.1", libraryFolders)
	if err != nil {
		return nil, err
	}
	devRoot := "/"
	if info, err := os.Stat(filepath.Join(d.root, "dev")); err == nil && info.IsDir() {
		devRoot = d.root
	}
	return nvcdi.New(
		// It logs each of fifty files that a driver may have.
		nvcdi.WithLogger(&logrus.Logger{Out: io.Discard}),
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(nvml.New(nvml.WithLibraryPath(library))),
		nvcdi.WithDriverRoot(d.root), nvcdi.WithDevRoot(devRoot), nvcdi.WithNVIDIACDIHookPath(d.hook),
		nvcdi.WithVendor(cdiVendor), nvcdi.WithClass(cdiClass), nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
}

func (d *driver) specFile(claim types.UID) string {
	return filepath.Join(d.cdiRoot, cdi.GenerateTransientSpecName(cdiVendor, cdiClass, string(claim))+".yaml")
}

func (d *driver) writeSpec(generator nvcdi.Interface, claim types.UID, devices []specs.Device) error {
	common, err := generator.GetCommonEdits()
	if err != nil {
		return err
	}
	file, err := spec.New(spec.WithVendor(cdiVendor), spec.WithClass(cdiClass), spec.WithDeviceSpecs(devices), spec.WithEdits(*common.ContainerEdits))
	if err != nil {
		return err
	}
	onHost := root.New(root.WithRoot(d.root), root.WithTargetRoot(d.hostRoot), root.WithRelativeTo("host"))
	if err := onHost.Transform(file.Raw()); err != nil {
		return err
	}
	return file.Save(d.specFile(claim))
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		if err := os.Remove(d.specFile(claim.UID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.Errorf("unable to delete CDI spec file: %v", err)
		}
		delete(d.PreparedClaims, claim.UID)
		results[claim.UID] = d.save()
		klog.Infof("unprepared claim %s: %v", claim, results[claim.UID])
	}
	return results, nil
}

// HandleError and WatchHealthStatus are for errors in the background, and for the health of devices, which NVIDIA's program does not
// report.
func (d *driver) HandleError(ctx context.Context, err error, message string) {
	runtime.HandleErrorWithContext(ctx, err, message)
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
