"""The accelerators of a simulated fleet: their sizes, limits and what each vendor's driver cannot answer.

H200 figures were read from a real board (driver 580). The others are the vendors' data sheets and what their tools
print on real hosts; where neither tells (thresholds of the B200, idle clocks of AMD), one near the sibling's stands.
"""

from __future__ import annotations

from msgspec import Struct

from passmuster.records import Vendor

MIB = 2**20
MHZ = 1e6

NVIDIA_BLOCKS = ("dram", "sram")
AMD_BLOCKS = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")


class DeviceModel(Struct, frozen=True, kw_only=True):
    """One product. Power in watts, temperatures in Celsius, clocks in hertz."""

    slug: str  # in host names
    name: str  # as the driver says it
    vendor: Vendor
    architecture: str
    memory_bytes: int
    reserved_bytes: int | None  # AMD's tools do not tell it
    memory_vendor: str | None
    part_number: str
    vbios: str
    driver: str
    power_limit: float
    power_idle: float
    celsius_per_watt: float  # core (NVIDIA) or hotspot (AMD) above inlet
    slowdown: float
    shutdown: float
    memory_limit: float
    clock_limit: float
    clock_idle: float
    clock_busy_share: float  # of the limit that a heavy training job holds
    clock_memory: float
    clock_memory_idle: float
    clock_soc: float | None
    links: int
    link_word: str  # nvlink or xgmi
    row_remap_banks: int | None
    bad_page_limit: int | None
    pci: tuple[str, ...]  # of the eight devices of one host
    share: int  # hosts of this model among ten

    def pci_address(self, device: int) -> str:
        """Return dddd:bb:dd.f of a device of the host; every eight devices have a domain of their own."""
        return f"{device // len(self.pci):04x}:{self.pci[device % len(self.pci)]}.0"


H200 = DeviceModel(
    slug="h200",
    name="NVIDIA H200",
    vendor=Vendor.NVIDIA,
    architecture="hopper",
    memory_bytes=150_754_820_096,
    reserved_bytes=644_939_776,
    memory_vendor=None,
    part_number="699-2G520-0280-001",
    vbios="96.00.A5.00.1A",
    driver="580.159.04",
    power_limit=700.0,
    power_idle=77.0,
    celsius_per_watt=0.052,
    slowdown=89.0,
    shutdown=95.0,
    memory_limit=95.0,
    clock_limit=1980 * MHZ,
    clock_idle=345 * MHZ,
    clock_busy_share=0.86,
    clock_memory=3201 * MHZ,
    clock_memory_idle=3201 * MHZ,
    clock_soc=None,
    links=18,
    link_word="nvlink",
    row_remap_banks=3072,
    bad_page_limit=None,
    pci=("19:00", "3b:00", "4c:00", "5d:00", "9b:00", "bb:00", "cb:00", "db:00"),
    share=4,
)
B200 = DeviceModel(
    slug="b200",
    name="NVIDIA B200",
    vendor=Vendor.NVIDIA,
    architecture="blackwell",
    memory_bytes=183_359 * MIB,
    reserved_bytes=788_529_152,
    memory_vendor=None,
    part_number="692-2G525-0220-000",
    vbios="97.00.88.00.0F",
    driver="580.159.04",
    power_limit=1000.0,
    power_idle=142.0,
    celsius_per_watt=0.041,
    slowdown=89.0,
    shutdown=95.0,
    memory_limit=95.0,
    clock_limit=1965 * MHZ,
    clock_idle=120 * MHZ,
    clock_busy_share=0.89,
    clock_memory=3996 * MHZ,
    clock_memory_idle=3996 * MHZ,
    clock_soc=None,
    links=18,
    link_word="nvlink",
    # 512 a stack, as the six stacks of an H200 have.
    row_remap_banks=4096,
    bad_page_limit=None,
    pci=("1b:00", "43:00", "52:00", "61:00", "9d:00", "c3:00", "d1:00", "df:00"),
    share=2,
)
MI300X = DeviceModel(
    slug="mi300x",
    name="AMD Instinct MI300X",
    vendor=Vendor.AMD,
    architecture="gfx942",
    memory_bytes=196_592 * MIB,
    reserved_bytes=None,
    memory_vendor="hynix",
    part_number="102-G30211-00",
    vbios="113-M3000100-103",
    driver="6.12.12",
    power_limit=750.0,
    power_idle=138.0,
    celsius_per_watt=0.066,
    slowdown=100.0,
    shutdown=105.0,
    memory_limit=105.0,
    clock_limit=2100 * MHZ,
    clock_idle=132 * MHZ,
    clock_busy_share=0.66,
    clock_memory=1300 * MHZ,
    clock_memory_idle=900 * MHZ,
    clock_soc=38 * MHZ,
    links=7,
    link_word="xgmi",
    row_remap_banks=None,
    bad_page_limit=128,
    pci=("05:00", "26:00", "46:00", "65:00", "85:00", "a6:00", "c6:00", "e5:00"),
    share=2,
)
MI350X = DeviceModel(
    slug="mi350x",
    name="AMD Instinct MI350X",
    vendor=Vendor.AMD,
    architecture="gfx950",
    memory_bytes=294_896 * MIB,
    reserved_bytes=None,
    memory_vendor="samsung",
    part_number="102-G36101-00",
    vbios="113-M350XX00-021",
    driver="6.14.14",
    power_limit=1000.0,
    power_idle=160.0,
    celsius_per_watt=0.052,
    slowdown=100.0,
    shutdown=105.0,
    memory_limit=105.0,
    clock_limit=2200 * MHZ,
    clock_idle=140 * MHZ,
    clock_busy_share=0.72,
    clock_memory=2000 * MHZ,
    clock_memory_idle=900 * MHZ,
    clock_soc=40 * MHZ,
    links=7,
    link_word="xgmi",
    row_remap_banks=None,
    bad_page_limit=256,
    pci=("05:00", "15:00", "65:00", "75:00", "85:00", "95:00", "e5:00", "f5:00"),
    share=2,
)
MODELS = (H200, MI300X, B200, MI350X)
"""In the order in which the first racks take them, so that a fleet of four hosts has one of each."""

HBM_STACKS = 8
BLOCKS = {Vendor.NVIDIA: NVIDIA_BLOCKS, Vendor.AMD: AMD_BLOCKS}

# Fields that the vendor's driver has no answer for on these products: null in every row, with this reason.
MISSING: dict[Vendor, dict[str, str]] = {
    Vendor.NVIDIA: dict.fromkeys(
        (
            "bad_pages_limit",
            "bad_pages_pending",
            "bad_pages_reserved",
            "bad_pages_unreservable",
            "clock_soc_hertz",
            "compute_partition",
            "ecc_deferred_total",
            "link_bit_error_ratio",
            "link_bytes_total",
            "link_error_status",
            "memory_partition",
            "temperature_edge_celsius",
            "temperature_hbm_celsius",
            "temperature_hotspot_celsius",
            "temperature_hotspot_max_celsius",
        ),
        "unsupported",
    ),
    Vendor.AMD: dict.fromkeys(
        (
            "clock_sm_hertz",
            "dram_activity_ratio",
            "ecc_corrected_lifetime_total",
            "ecc_uncorrected_lifetime_total",
            "fabric_health",
            "fabric_status",
            "link_bit_error_ratio",
            "link_errors_total",
            "memory_reserved_bytes",
            "memory_unrepairable",
            "mig_enabled",
            "pcie_receive_bytes_total",
            "pcie_transmit_bytes_total",
            "recovery_action",
            "repair_pending",
            "row_remap_banks",
            "row_remap_failed",
            "row_remap_pending",
            "rows_remapped_corrected_total",
            "rows_remapped_uncorrected_total",
            "sm_activity_ratio",
            "sm_occupancy_ratio",
            "sram_threshold_exceeded",
            "temperature_core_celsius",
            "temperature_core_max_celsius",
            "temperature_edge_celsius",
            "temperature_margin_celsius",
            "tensor_activity_ratio",
        ),
        "unsupported",
    ),
}
# A healthy board shows some PCIe errors: these totals were read on an H200 days after boot.
# AMD counts fewer kinds.
PCIE_ERRORS: dict[Vendor, dict[str, int]] = {
    Vendor.NVIDIA: {
        "replay": 0,
        "replay_rollover": 0,
        "recovery": 731,
        "correctable": 0,
        "nak_received": 0,
        "receiver": 29,
        "bad_tlp": 32,
        "nak_sent": 27,
        "bad_dllp": 0,
        "nonfatal": 0,
        "fatal": 0,
        "unsupported_request": 0,
        "lcrc": 0,
        "lane": 43,
    },
    Vendor.AMD: {"replay": 3, "replay_rollover": 0, "recovery": 210, "nak_sent": 2, "nak_received": 1},
}
THROTTLE_REASONS: dict[Vendor, tuple[str, ...]] = {
    Vendor.NVIDIA: (
        "power_cap",
        "sw_thermal",
        "hw_thermal",
        "hw_slowdown",
        "power_brake",
        "sync_boost",
        "app_clocks",
        "idle",
    ),
    Vendor.AMD: ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal"),
}
