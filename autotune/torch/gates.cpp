// Gates of PyTorch's products without Python: what `gates.py` has found out of a shape is done here.
//
// They take the place of that module's gates and call them where nothing is known, so that all
// they hold is a table: of tensors that lie in some way, who computes. `compiled.py` compiles this
// for a kind of device, DEVICE, fills the table and is the only caller of the functions at the end.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

using at::Scalar;
using at::Tensor;

namespace at::DEVICE {  // PyTorch's kernels, which its dispatcher would call

Tensor mm(const Tensor&, const Tensor&);
Tensor& mm_out(Tensor& out, const Tensor&, const Tensor&);
Tensor addmm(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
Tensor& addmm_out(Tensor& out, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                  const Scalar&);
Tensor bmm(const Tensor&, const Tensor&);
Tensor& bmm_out(Tensor& out, const Tensor&, const Tensor&);

}  // namespace at::DEVICE

namespace theirs = at::DEVICE;

namespace {

// What `compiled.py` passes, as ctypes lays it out.

struct Attribute {  // CUlaunchAttribute
  alignas(8) char bytes[72];
};

struct Step {  // a kernel of a launch
  void* function;
  unsigned extents[7];  // of the grid and of a block, and bytes of shared memory
  unsigned count;
  Attribute attributes[2];
};

struct Address {  // of an operand, or where in it, among the arguments
  int64_t offset, operand, displacement;
};

struct View {  // of a plan
  const char* arguments;
  const int64_t* places;
  const Step* steps;
  const Address *addresses, *maps;
  const int64_t* shape;
  int64_t size, place_count, step_count, address_count, map_count, dimensions;
  int64_t workspace_bytes, zeroed_bytes;
  int64_t is_strict, adds_afterwards;  // see Plan
};

struct Config {  // CUlaunchConfig
  unsigned extents[7];
  void* stream;
  Attribute* attributes;
  unsigned count;
};

struct Driver {
  int (*launch)(const Config*, void* function, void** parameters, void** extra);
  int (*replace_address)(void* map, void* address);
  int (*is_capturing)(void* stream, int* status);
  int (*clear)(uint64_t address, unsigned value, size_t words, void* stream);
  int (*current_stream)(int device, void** stream);
};

constexpr int64_t OUT = 3, WORKSPACE = 4;  // operands: A, B, what is added, and these
void* const PER_THREAD = reinterpret_cast<void*>(2);  // CU_STREAM_PER_THREAD
constexpr uintptr_t ALIGNMENT = 16;        // of what a tensor map describes
constexpr size_t MOST_ARGUMENTS = 4096, MOST_PLACES = 64;

// A kernel's launch, but for the addresses of a call's tensors.
struct Plan {
  explicit Plan(const View& view)
      : arguments(view.arguments, view.arguments + view.size),
        places(view.places, view.places + view.place_count),
        steps(view.steps, view.steps + view.step_count),
        addresses(view.addresses, view.addresses + view.address_count),
        maps(view.maps, view.maps + view.map_count),
        shape(view.shape, view.shape + view.dimensions),
        workspace_bytes(view.workspace_bytes),
        zeroed_bytes(view.zeroed_bytes),
        is_strict(view.is_strict != 0),
        adds_afterwards(view.adds_afterwards != 0) {}

  std::vector<char> arguments;
  std::vector<int64_t> places;
  std::vector<Step> steps;
  std::vector<Address> addresses, maps;
  std::vector<int64_t> shape;
  int64_t workspace_bytes, zeroed_bytes;
  bool is_strict;        // only where PyTorch is not set to round float32
  bool adds_afterwards;  // what is added is not the kernel's to add
};

// How the tensors of a call lie: operation, device, type, sizes and strides.
struct Key {
  std::array<int64_t, 24> numbers;
  size_t count = 0;

  void add(int64_t number) { numbers[count++] = number; }

  void add(const Tensor& tensor) {
    for (int64_t size : tensor.sizes()) add(size);
    for (int64_t stride : tensor.strides()) add(stride);
  }

  bool operator==(const Key& other) const {
    return count == other.count &&
           std::memcmp(numbers.data(), other.numbers.data(), count * sizeof(int64_t)) == 0;
  }
};

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.count;
    for (size_t i = 0; i < key.count; ++i) {
      hash = (hash ^ static_cast<uint64_t>(key.numbers[i])) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Who computes: a kernel, PyTorch where there is no plan, or, without a value, nobody knows.
using Found = std::optional<std::shared_ptr<const Plan>>;

class Table {
 public:
  Found find(const Key& key) const {
    std::shared_lock lock(mutex_);
    auto at = entries_.find(key);
    return at == entries_.end() ? Found() : Found(at->second);
  }

  void put(const Key& key, std::shared_ptr<const Plan> plan, size_t most) {
    std::unique_lock lock(mutex_);
    if (entries_.size() >= most) entries_.clear();
    entries_[key] = std::move(plan);
  }

  void clear() {
    std::unique_lock lock(mutex_);
    entries_.clear();
  }

  void unlock_in_child() { new (&mutex_) std::shared_mutex; }  // another thread may have held it

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, Hash> entries_;
};

// Memory that kernels use in turns, in the order of one stream.
struct Block {
  Tensor memory;
  int64_t zeroed = 0;  // so many of the first bytes are zero when all that is enqueued is done
};

// They stay as long as the process: other threads may be in the gates when it ends.
Table& table = *new Table;
Driver driver;
std::atomic<int> selected{0};  // which products are served now; 0 is none
thread_local int own = 0;      // the same in a call of an operator of ours
std::mutex& workspaces_mutex = *new std::mutex;
auto& workspaces = *new std::map<std::pair<int, void*>, Block>;

enum Operation : int64_t { MM, ADDMM, BMM };

int current() { return own ? own : selected.load(std::memory_order_relaxed); }

// True of operands of so many dimensions, on one device; of others PyTorch says what is wrong.
bool fits(const Tensor& a, const Tensor& b, int64_t dimensions) {
  return a.dim() == dimensions && b.dim() == dimensions && a.device() == b.device();
}

Key key_of(Operation operation, const Tensor& a, const Tensor& b) {
  Key key;
  key.add(current());
  key.add(operation);
  key.add(a.device().index());
  key.add(static_cast<int64_t>(a.scalar_type()));
  key.add(static_cast<int64_t>(b.scalar_type()));
  key.add(a);
  key.add(b);
  return key;
}

// The first and the last address of a tensor.
std::pair<const char*, const char*> range_of(const Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  auto first = static_cast<const char*>(tensor.const_data_ptr());
  return {first, first + (last + 1) * static_cast<int64_t>(tensor.itemsize()) - 1};
}

// May a kernel write a result to it as it is? See `_holds` of gates.py.
bool holds(const Tensor& out, const Plan& plan, std::initializer_list<const Tensor*> inputs) {
  if (out.sizes() != at::IntArrayRef(plan.shape) || !out.is_contiguous()) return false;
  auto [first, last] = range_of(out);
  for (const Tensor* input : inputs) {
    if (input == nullptr) continue;
    auto [begin, end] = range_of(*input);
    bool alike = out.scalar_type() == input->scalar_type() && out.device() == input->device();
    if (!alike || (first <= end && begin <= last)) return false;
  }
  return !out.requires_grad();
}

// Memory for a launch, its first bytes zero; null in a capture, whose memory is the graph's, and
// where one handle stands for a stream of each thread.
void* workspace_of(const Plan& plan, const Tensor& like, void* stream) {
  if (stream == PER_THREAD) return nullptr;
  int capturing = 1;
  if (driver.is_capturing(stream, &capturing) != 0 || capturing != 0) return nullptr;
  Block& block = workspaces[{like.device().index(), stream}];
  if (!block.memory.defined() || block.memory.numel() < plan.workspace_bytes) {
    block.memory = at::empty({plan.workspace_bytes}, like.options().dtype(at::kByte));
    block.zeroed = 0;
  }
  char* memory = static_cast<char*>(block.memory.data_ptr());
  if (plan.zeroed_bytes > block.zeroed) {
    auto rest = reinterpret_cast<uint64_t>(memory + block.zeroed);
    int64_t words = (plan.zeroed_bytes - block.zeroed) / 4;  // whole words
    if (driver.clear(rest, 0, words, stream) != 0) return nullptr;
  }
  block.zeroed = plan.zeroed_bytes;  // what comes after that is the kernel's own
  return memory;
}

// Enqueue a plan's kernels; false where they cannot take the operands as they lie.
bool enqueue(const Plan& plan, std::array<void*, 5> operands, const Tensor& like) {
  void* stream = nullptr;
  if (driver.current_stream(like.device().index(), &stream) != 0) return false;
  std::unique_lock lock(workspaces_mutex, std::defer_lock);
  if (plan.workspace_bytes) {
    lock.lock();  // until all of it is enqueued: no other thread's launch comes between
    operands[WORKSPACE] = workspace_of(plan, like, stream);
    if (operands[WORKSPACE] == nullptr) return false;
  }
  alignas(64) char arguments[MOST_ARGUMENTS];
  std::memcpy(arguments, plan.arguments.data(), plan.arguments.size());
  for (const Address& each : plan.addresses)
    std::memcpy(arguments + each.offset, &operands[each.operand], sizeof(void*));
  for (const Address& each : plan.maps) {
    char* address = static_cast<char*>(operands[each.operand]) + each.displacement;
    if (reinterpret_cast<uintptr_t>(address) % ALIGNMENT) return false;
    if (driver.replace_address(arguments + each.offset, address) != 0) return false;
  }
  void* apart[MOST_PLACES];
  for (size_t i = 0; i < plan.places.size(); ++i) apart[i] = arguments + plan.places[i];
  size_t size = plan.arguments.size();
  void* together[] = {reinterpret_cast<void*>(1), arguments,  // CU_LAUNCH_PARAM_BUFFER_POINTER
                      reinterpret_cast<void*>(2), &size, nullptr};
  bool is_apart = !plan.places.empty();
  for (const Step& step : plan.steps) {
    Config config{};
    std::memcpy(config.extents, step.extents, sizeof(config.extents));
    config.stream = stream;
    config.attributes = const_cast<Attribute*>(step.attributes);
    config.count = step.count;
    if (driver.launch(&config, step.function, is_apart ? apart : nullptr,
                      is_apart ? nullptr : together) != 0)
      return false;
  }
  return true;
}

// True where PyTorch multiplies float32 without rounding it; PyTorch 2.9 has names, not numbers.
template <class Precision, class Backend, class Product>
bool is_exact(Precision (at::Context::*precision_of)(Backend, Product) const) {
  if constexpr (std::is_enum_v<Precision>) {
    Precision found = (at::globalContext().*precision_of)(Backend::CUDA, Product::MATMUL);
    return found != Precision::TF32 && found != Precision::BF16;
  } else {
    Precision found = (at::globalContext().*precision_of)("cuda", "matmul");
    return found != "tf32" && found != "bf16";
  }
}

// The result by a kernel, in a new tensor or in `given`; false where it cannot be.
bool compute(const Plan& plan, const Tensor& a, const Tensor& b, const Tensor* c, Tensor& made,
             const Tensor* given = nullptr) {
  if (plan.is_strict && !is_exact(&at::Context::float32Precision)) return false;
  if (given != nullptr && !holds(*given, plan, {&a, &b, c})) return false;
  c10::DeviceGuard guard(a.device());
  made = given != nullptr ? *given : at::empty(plan.shape, a.options());
  auto read = [](const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); };
  void* added = c == nullptr ? nullptr : read(*c);
  if (!enqueue(plan, {read(a), read(b), added, made.data_ptr(), nullptr}, a)) return false;
  if (plan.adds_afterwards) made.add_(*c);
  return true;
}

// The gates of gates.py, which lie below these.
class Below {
 public:
  void find(const char* name, const char* overload, c10::DispatchKey key) {
    handle_.emplace(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
    kernel_.emplace(handle_->getComputedKernelForDispatchKey(key));
  }

  template <class... Arguments>
  Tensor call(c10::DispatchKeySet keys, Arguments&&... arguments) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Arguments>(arguments)...);
    kernel_->callBoxed(*handle_, keys, &stack);
    return stack.back().toTensor();
  }

 private:
  std::optional<c10::OperatorHandle> handle_;
  std::optional<c10::SafeKernelFunction> kernel_;
};

struct {
  Below mm, mm_out, addmm, addmm_out, bmm, bmm_out;
} below;

bool is_off() { return current() == 0; }

// Who computes a product or, of three dimensions, those of a stack.
Found who_multiplies(Operation operation, const Tensor& a, const Tensor& b, int64_t dimensions) {
  return fits(a, b, dimensions) ? table.find(key_of(operation, a, b)) : Found();
}

// The result by whoever computes it: a kernel, PyTorch, or, for what is not known, the gate below.
template <class Theirs, class Asked>
Tensor passed(const Found& found, const Tensor& a, const Tensor& b, const Tensor* c,
              const Theirs& by_pytorch, const Asked& by_gate_below, const Tensor* out = nullptr) {
  if (found) {
    Tensor made;
    if (!*found) return by_pytorch();
    if (compute(**found, a, b, c, made, out)) return made;
  }
  return by_gate_below();
}

Tensor mm(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b) {
  auto by_pytorch = [&] { return theirs::mm(a, b); };
  if (is_off()) return by_pytorch();
  return passed(who_multiplies(MM, a, b, 2), a, b, nullptr, by_pytorch,
                [&] { return below.mm.call(keys, a, b); });
}

Tensor& mm_out(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, Tensor& out) {
  auto by_pytorch = [&] { return theirs::mm_out(out, a, b); };
  if (is_off()) {
    by_pytorch();
  } else {
    passed(who_multiplies(MM, a, b, 2), a, b, nullptr, by_pytorch,
           [&] { return below.mm_out.call(keys, a, b, out); }, &out);
  }
  return out;
}

bool is_plain_sum(const Scalar& beta, const Scalar& alpha) {
  return !beta.isComplex() && !alpha.isComplex() && beta.equal(1) && alpha.equal(1);
}

bool fits_sum(const Tensor& c, const Tensor& a) {
  return (c.dim() == 1 || c.dim() == 2) && c.device() == a.device() &&
         c.scalar_type() == a.scalar_type();
}

Key key_of_sum(const Tensor& c, const Tensor& a, const Tensor& b) {
  Key key = key_of(ADDMM, a, b);
  key.add(c);
  return key;
}

Tensor addmm(c10::DispatchKeySet keys, const Tensor& c, const Tensor& a, const Tensor& b,
             const Scalar& beta, const Scalar& alpha) {
  auto by_pytorch = [&] { return theirs::addmm(c, a, b, beta, alpha); };
  if (is_off()) return by_pytorch();
  bool is_usual = is_plain_sum(beta, alpha) && fits(a, b, 2) && fits_sum(c, a);
  return passed(is_usual ? table.find(key_of_sum(c, a, b)) : Found(), a, b, &c, by_pytorch,
                [&] { return below.addmm.call(keys, c, a, b, beta, alpha); });
}

Tensor& addmm_out(c10::DispatchKeySet keys, const Tensor& c, const Tensor& a, const Tensor& b,
                  const Scalar& beta, const Scalar& alpha, Tensor& out) {
  if (is_off()) return theirs::addmm_out(out, c, a, b, beta, alpha);
  below.addmm_out.call(keys, c, a, b, beta, alpha, out);
  return out;
}

Tensor bmm(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b) {
  auto by_pytorch = [&] { return theirs::bmm(a, b); };
  if (is_off()) return by_pytorch();
  return passed(who_multiplies(BMM, a, b, 3), a, b, nullptr, by_pytorch,
                [&] { return below.bmm.call(keys, a, b); });
}

Tensor& bmm_out(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, Tensor& out) {
  if (is_off()) return theirs::bmm_out(out, a, b);
  below.bmm_out.call(keys, a, b, out);
  return out;
}

}  // namespace

extern "C" {

// Take the place of the gates that are there; null, or why that cannot be.
const char* gates_install(const char* key_name) {
  static std::string failure;
  try {
    auto key = c10::parseDispatchKey(key_name);
    below.mm.find("aten::mm", "", key);
    below.mm_out.find("aten::mm", "out", key);
    below.addmm.find("aten::addmm", "", key);
    below.addmm_out.find("aten::addmm", "out", key);
    below.bmm.find("aten::bmm", "", key);
    below.bmm_out.find("aten::bmm", "out", key);
    auto library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library->impl("mm", TORCH_FN(mm));
    library->impl("mm.out", TORCH_FN(mm_out));
    library->impl("addmm", TORCH_FN(addmm));
    library->impl("addmm.out", TORCH_FN(addmm_out));
    library->impl("bmm", TORCH_FN(bmm));
    library->impl("bmm.out", TORCH_FN(bmm_out));
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
  return nullptr;
}

void gates_drive(const Driver* functions) { driver = *functions; }

void gates_select(int number) { selected = number; }

// Begin an operator's call, unless a mode or a transform of PyTorch's sees what is called in this
// thread; gives 0 for that, and otherwise one more than there are modes that see functions.
int gates_enter(int number) {
  using c10::DispatchKey;
  using c10::impl::tls_is_dispatch_key_included;
  if (tls_is_dispatch_key_included(DispatchKey::Python)) return 0;
  if (tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode)) return 0;
  own = number;
  return 1 + static_cast<int>(at::impl::PythonTorchFunctionTLS::stack_len());
}

void gates_leave() { own = 0; }

int gates_owner() { return own; }

void gates_clear() { table.clear(); }

void gates_forked() { table.unlock_in_child(); }

// Put who computes: a plan, or PyTorch where that is null. What is too large is not put.
void gates_put(const int64_t* numbers, int64_t count, const View* view, int64_t most) {
  Key key;
  if (count > static_cast<int64_t>(key.numbers.size())) return;
  for (int64_t i = 0; i < count; ++i) key.add(numbers[i]);
  std::shared_ptr<const Plan> plan;
  if (view != nullptr) {
    if (view->size > static_cast<int64_t>(MOST_ARGUMENTS)) return;
    if (view->place_count > static_cast<int64_t>(MOST_PLACES)) return;
    plan = std::make_shared<const Plan>(*view);
  }
  table.put(key, std::move(plan), most);
}

}  // extern "C"
