// The clocks and timed waits of libc in virtual time, for the processes of an emulated client.
//
// The dynamic linker loads this library before libc (LD_PRELOAD), so that every program and library
// of the process gets these functions: Python's locks, multiprocessing's semaphores, the timers of
// ZeroMQ and of event loops. A thread that waits until a virtual time sleeps in the kernel without
// any time-out, and says in a table that all processes share until when. `llmsim emulate` reads the
// table when all threads sleep, moves the clock, and sends a signal to the threads whose time has
// come (llmsim/emulation/timekeeping/thread_waits.py).
//
// It has symbols of libc and nothing of libstdc++, and every function has a name of its own in C++,
// so that it compiles against any version of glibc's headers.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr int64_t kPsPerNs = 1000;
constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kEpochS = 2'100'000'000;  // clock.py: what time.time() says at the virtual zero
constexpr int64_t kFarS = 9'000'000'000;    // of a timespec
constexpr int64_t kLongestNs = INT64_MAX / kPsPerNs / 2;  // of virtual time
// A wait ends so much later than it is asked to, as those of a kernel do, and a look takes as long:
// programs look whether a time has passed, with clocks of doubles, and would look for ever at the
// time itself.
constexpr int64_t kLatePs = 1'000'000;
constexpr int kSlots = 4096;

enum State : int32_t { kIdle = 0, kWaits = 1, kDue = 2 };

// One thread's place in the table; thread 0: nobody's. The first place is no thread's: its state
// says that a thread has found no place, and its end that no later place was ever taken.
struct Slot {
  std::atomic<int32_t> process;
  std::atomic<int32_t> thread;
  std::atomic<int64_t> until_ps;
  std::atomic<int32_t> state;
  std::atomic<int32_t> end;
};
static_assert(sizeof(Slot) == 24);

const std::atomic<int64_t>* clock_page = nullptr;  // null: this process lives in real time
Slot* slots = nullptr;
pthread_key_t slot_key;

// Of the present thread.
__thread Slot* own_slot = nullptr;
__thread volatile sig_atomic_t is_called = 0;
__thread int real_depth = 0;
__thread int64_t seen_ps = 0;  // its clock, where that is ahead of the page

int wake_signal() { return SIGRTMAX - 3; }

// A function of libc as libc has it, which is looked up when it is first called.
template <class Signature>
class Real;

template <class Result, class... Arguments>
class Real<Result(Arguments...)> {
 public:
  constexpr explicit Real(const char* name) : name_(name) {}
  Result operator()(Arguments... arguments) {
    if (known_ == nullptr) known_ = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
    return known_(arguments...);
  }

 private:
  using Function = Result(Arguments...);
  const char* name_;
  Function* known_ = nullptr;
};

using Mask = const sigset_t;
constinit Real<int(clockid_t, timespec*)> real_clock_gettime{"clock_gettime"};
constinit Real<int(timeval*, void*)> real_gettimeofday{"gettimeofday"};
constinit Real<time_t(time_t*)> real_time{"time"};
constinit Real<int(clockid_t, int, const timespec*, timespec*)> real_clock_nanosleep{
    "clock_nanosleep"};
constinit Real<int(pollfd*, nfds_t, int)> real_poll{"poll"};
constinit Real<int(pollfd*, nfds_t, const timespec*, Mask*)> real_ppoll{"ppoll"};
constinit Real<int(int, fd_set*, fd_set*, fd_set*, const timespec*, Mask*)> real_pselect{"pselect"};
constinit Real<int(int, epoll_event*, int, int, Mask*)> real_epoll_pwait{"epoll_pwait"};
constinit Real<int(sem_t*)> real_sem_wait{"sem_wait"};
constinit Real<int(sem_t*)> real_sem_trywait{"sem_trywait"};
constinit Real<int(sem_t*, const timespec*)> real_sem_timedwait{"sem_timedwait"};
constinit Real<int(sem_t*, clockid_t, const timespec*)> real_sem_clockwait{"sem_clockwait"};
constinit Real<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>
    real_pthread_cond_clockwait{"pthread_cond_clockwait"};
constinit Real<int(pthread_mutex_t*, const timespec*)> real_pthread_mutex_timedlock{
    "pthread_mutex_timedlock"};

// glibc has two versions of it, and dlsym would find the old one.
int real_pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                const timespec* time) {
  static int (*known)(pthread_cond_t*, pthread_mutex_t*, const timespec*) = nullptr;
  if (known == nullptr) {
    void* found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (found == nullptr) found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    known = reinterpret_cast<decltype(known)>(found);
  }
  return known(condition, mutex, time);
}

bool is_virtual() { return clock_page != nullptr && real_depth == 0; }

int64_t now_ps() {
  int64_t page_ps = clock_page->load(std::memory_order_acquire);
  return page_ps > seen_ps ? page_ps : seen_ps;
}

// A thread looks for something without waiting. It sees a clock that has moved behind it: one that
// looks until a time has passed would look for ever, as the clock stands still while it computes.
void look() {
  if (is_virtual()) seen_ps = now_ps() + kLatePs;
}

bool is_wall_clock(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

// Clocks that go on while nobody computes.
bool is_of_time(clockid_t clock) {
  return is_wall_clock(clock) || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW ||
         clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
}

int64_t ns_of(const timespec& time) {
  if (time.tv_sec > kFarS) return kFarS * kNsPerS;
  return time.tv_sec * kNsPerS + time.tv_nsec;
}

timespec timespec_of(int64_t ns) { return {time_t(ns / kNsPerS), long(ns % kNsPerS)}; }

int64_t virtual_ns(clockid_t clock) {
  return now_ps() / kPsPerNs + (is_wall_clock(clock) ? kEpochS * kNsPerS : 0);
}

int64_t until_ps_in(int64_t ns) {
  return now_ps() + (ns > kLongestNs ? kLongestNs : ns) * kPsPerNs;
}

// The virtual time of a deadline.
int64_t until_ps_at(clockid_t clock, const timespec& deadline) {
  int64_t ns = ns_of(deadline) - (is_wall_clock(clock) ? kEpochS * kNsPerS : 0);
  return (ns > kLongestNs ? kLongestNs : ns) * kPsPerNs;
}

// The virtual clocks are half an age apart, so that a deadline says which of them it is of.
clockid_t clock_of(const timespec& deadline) {
  return deadline.tv_sec >= kEpochS / 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

// The same deadline for a wait that stays one of the wall.
timespec real_deadline(clockid_t clock, const timespec& deadline) {
  timespec now;
  real_clock_gettime(clock, &now);
  int64_t left_ns = ns_of(deadline) - virtual_ns(clock);
  if (left_ns > 86'400 * kNsPerS) left_ns = 86'400 * kNsPerS;
  int64_t ns = ns_of(now) + (left_ns < 0 ? 0 : left_ns);
  return timespec_of(ns);
}

void called(int) { is_called = 1; }

void give_back(void* slot) {
  Slot* left = static_cast<Slot*>(slot);
  left->state.store(kIdle);
  left->thread.store(0);
}

Slot* take_slot() {
  int32_t process = getpid(), thread = int32_t(syscall(SYS_gettid));
  for (int number = 1; number < kSlots; ++number) {
    int32_t nobody = 0;
    if (slots[number].thread.load(std::memory_order_relaxed) == 0 &&
        slots[number].thread.compare_exchange_strong(nobody, thread)) {
      slots[number].process.store(process);
      int32_t end = slots[0].end.load();
      while (end <= number && !slots[0].end.compare_exchange_weak(end, number + 1)) continue;
      pthread_setspecific(slot_key, &slots[number]);
      return &slots[number];
    }
  }
  slots[0].state.store(1);  // `llmsim emulate` ends the client
  for (;;) pause();
}

// A wait of the present thread until a virtual time: `call` blocks without a time-out, and fails
// with EINTR when that time has come.
class Wait {
 public:
  template <class Call>
  Wait(int64_t until_ps, Call call) {
    if (own_slot == nullptr) own_slot = take_slot();
    sigset_t wake, before;
    sigemptyset(&wake);
    sigaddset(&wake, wake_signal());
    pthread_sigmask(SIG_UNBLOCK, &wake, &before);
    is_called = 0;
    own_slot->until_ps.store(until_ps + kLatePs, std::memory_order_relaxed);
    own_slot->state.store(kWaits, std::memory_order_release);
    result = call();
    error = errno;
    bool is_due = own_slot->state.exchange(kIdle) == kDue;
    while (is_due && is_called == 0) {  // else the signal would disturb a later call
      timespec moment = {0, 20'000};
      real_clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, nullptr);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    timed_out = is_due && result < 0 && error == EINTR;
    errno = error;
  }

  int result, error;
  bool timed_out;
};

// Without files, it waits for a signal.
int sleep_in_kernel(pollfd* files, nfds_t count, Mask* mask) {
  return real_ppoll(files, count, nullptr, mask);
}

// A mask of the caller that lets the signal of a wait through.
class OpenMask {
 public:
  explicit OpenMask(Mask* given) {
    if (given == nullptr) return;
    open_ = *given;
    sigdelset(&open_, wake_signal());
    mask = &open_;
  }
  Mask* mask = nullptr;

 private:
  sigset_t open_;
};

// 0, or an errno with the time that is left.
int sleep_until(int64_t until_ps, timespec* left) {
  if (until_ps <= now_ps()) {
    look();
    sched_yield();
    return 0;
  }
  Wait wait(until_ps, [] { return sleep_in_kernel(nullptr, 0, nullptr); });
  if (wait.timed_out) return 0;
  if (left != nullptr) {
    int64_t left_ps = until_ps - now_ps();
    *left = timespec_of((left_ps < 0 ? 0 : left_ps) / kPsPerNs);
  }
  return wait.error;
}

int poll_for(pollfd* files, nfds_t count, int64_t ns, Mask* given) {
  OpenMask open(given);
  Wait wait(until_ps_in(ns), [&] { return sleep_in_kernel(files, count, open.mask); });
  return wait.timed_out ? 0 : wait.result;
}

void clear_set(fd_set* set, int count) {
  if (set != nullptr) memset(set, 0, size_t(count + 63) / 64 * 8);
}

int select_for(int count, fd_set* in, fd_set* out, fd_set* bad, int64_t ns, Mask* given) {
  OpenMask open(given);
  Wait wait(until_ps_in(ns), [&] { return real_pselect(count, in, out, bad, nullptr, open.mask); });
  if (!wait.timed_out) return wait.result;
  for (fd_set* set : {in, out, bad}) clear_set(set, count);
  return 0;
}

int epoll_for(int file, epoll_event* events, int count, int64_t ns, Mask* given) {
  OpenMask open(given);
  Wait wait(until_ps_in(ns), [&] { return real_epoll_pwait(file, events, count, -1, open.mask); });
  return wait.timed_out ? 0 : wait.result;
}

int take_until(sem_t* semaphore, int64_t until_ps) {
  if (real_sem_trywait(semaphore) == 0) return 0;
  if (until_ps > now_ps()) {
    Wait wait(until_ps, [&] { return real_sem_wait(semaphore); });
    if (!wait.timed_out) return wait.result;
  }
  errno = ETIMEDOUT;
  return -1;
}

using Raw = long (*)(long, ...);
Raw real_syscall() {
  static Raw known = nullptr;
  if (known == nullptr) known = reinterpret_cast<Raw>(dlsym(RTLD_NEXT, "syscall"));
  return known;
}

bool is_timed_futex(long number, const long* given) {
  long command = given[1] & FUTEX_CMD_MASK;
  return number == SYS_futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) &&
         given[3] != 0;
}

// The locks of Rust and others that know no pthreads.
long wait_on_futex(const long* given) {
  const timespec& time = *reinterpret_cast<const timespec*>(given[3]);
  bool is_deadline = (given[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
  clockid_t clock = given[1] & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC;
  int64_t until_ps = is_deadline ? until_ps_at(clock, time) : until_ps_in(ns_of(time));
  long command = given[1] & ~long(FUTEX_CLOCK_REALTIME);
  if (until_ps <= now_ps()) {
    errno = ETIMEDOUT;
    return -1;
  }
  Wait wait(until_ps, [&] {
    return int(real_syscall()(SYS_futex, given[0], command, given[2], 0L, given[4], given[5]));
  });
  if (!wait.timed_out) return wait.result;
  errno = ETIMEDOUT;
  return -1;
}

void* mapped(const char* variable, int access, size_t bytes) {
  const char* path = getenv(variable);
  if (path == nullptr) return nullptr;
  int file = open(path, (access & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* found = mmap(nullptr, bytes, access, MAP_SHARED, file, 0);
  close(file);
  return found == MAP_FAILED ? nullptr : found;
}

void forked() {
  own_slot = nullptr;  // the parent's
  if (slots != nullptr) pthread_setspecific(slot_key, nullptr);
}

__attribute__((constructor)) void install() {
  void* page = mapped("LLMSIM_EMULATION_CLOCK", PROT_READ, sizeof(int64_t));
  void* table = mapped("LLMSIM_EMULATION_WAITS", PROT_READ | PROT_WRITE, sizeof(Slot) * kSlots);
  if (page == nullptr || table == nullptr) return;
  slots = static_cast<Slot*>(table);
  pthread_key_create(&slot_key, give_back);
  pthread_atfork(nullptr, nullptr, forked);
  struct sigaction action = {};
  action.sa_handler = called;  // without SA_RESTART
  sigaction(wake_signal(), &action, nullptr);
  clock_page = static_cast<const std::atomic<int64_t>*>(page);
}

}  // namespace

#define PUBLIC extern "C" __attribute__((visibility("default")))
#define STANDS_FOR(name) __asm__(name)

// Waits and clocks of the present thread are those of the wall while it is positive.
PUBLIC void llmsim_real_waits(int more) { real_depth += more; }

// The virtual time as the present thread sees it.
PUBLIC int64_t llmsim_now_ps() { return clock_page == nullptr ? 0 : now_ps(); }

// Whether that thread of this process waits until a virtual time.
PUBLIC int llmsim_waits(int thread) {
  if (slots == nullptr) return 0;
  int32_t process = getpid();
  for (int number = 1, end = slots[0].end.load(); number < end; ++number) {
    const Slot& one = slots[number];
    if (one.thread.load() == thread && one.process.load() == process)
      return one.state.load() == kWaits;
  }
  return 0;
}

PUBLIC int own_clock_gettime(clockid_t, timespec*) STANDS_FOR("clock_gettime");
PUBLIC int own_clock_gettime(clockid_t clock, timespec* now) {
  if (!is_virtual() || !is_of_time(clock)) return real_clock_gettime(clock, now);
  *now = timespec_of(virtual_ns(clock));
  return 0;
}

PUBLIC int own_gettimeofday(timeval*, void*) STANDS_FOR("gettimeofday");
PUBLIC int own_gettimeofday(timeval* now, void* zone) {
  if (!is_virtual() || now == nullptr) return real_gettimeofday(now, zone);
  int64_t ns = virtual_ns(CLOCK_REALTIME);
  *now = {time_t(ns / kNsPerS), suseconds_t(ns % kNsPerS / 1000)};
  return 0;
}

PUBLIC time_t own_time(time_t*) STANDS_FOR("time");
PUBLIC time_t own_time(time_t* now) {
  if (!is_virtual()) return real_time(now);
  time_t seconds = virtual_ns(CLOCK_REALTIME) / kNsPerS;
  if (now != nullptr) *now = seconds;
  return seconds;
}

PUBLIC int own_clock_nanosleep(clockid_t, int, const timespec*, timespec*)
    STANDS_FOR("clock_nanosleep");
PUBLIC int own_clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (!is_virtual() || !is_of_time(clock)) return real_clock_nanosleep(clock, flags, time, left);
  if (flags & TIMER_ABSTIME) return sleep_until(until_ps_at(clock, *time), nullptr);
  return sleep_until(until_ps_in(ns_of(*time)), left);
}

PUBLIC int own_nanosleep(const timespec*, timespec*) STANDS_FOR("nanosleep");
PUBLIC int own_nanosleep(const timespec* time, timespec* left) {
  int error = own_clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

PUBLIC int own_usleep(useconds_t) STANDS_FOR("usleep");
PUBLIC int own_usleep(useconds_t us) {
  timespec time = timespec_of(int64_t(us) * 1000);
  return own_nanosleep(&time, nullptr);
}

PUBLIC unsigned own_sleep(unsigned) STANDS_FOR("sleep");
PUBLIC unsigned own_sleep(unsigned seconds) {
  timespec time = {time_t(seconds), 0}, left = {};
  return own_nanosleep(&time, &left) == 0 ? 0 : unsigned(left.tv_sec);
}

PUBLIC int own_poll(pollfd*, nfds_t, int) STANDS_FOR("poll");
PUBLIC int own_poll(pollfd* files, nfds_t count, int timeout_ms) {
  if (timeout_ms == 0) look();
  if (!is_virtual() || timeout_ms <= 0) return real_poll(files, count, timeout_ms);
  return poll_for(files, count, timeout_ms * 1'000'000LL, nullptr);
}

PUBLIC int own_checked_poll(pollfd*, nfds_t, int, size_t) STANDS_FOR("__poll_chk");
PUBLIC int own_checked_poll(pollfd* files, nfds_t count, int timeout_ms, size_t) {
  return own_poll(files, count, timeout_ms);
}

PUBLIC int own_ppoll(pollfd*, nfds_t, const timespec*, Mask*) STANDS_FOR("ppoll");
PUBLIC int own_ppoll(pollfd* files, nfds_t count, const timespec* timeout, Mask* mask) {
  if (timeout != nullptr && ns_of(*timeout) == 0) look();
  if (!is_virtual() || timeout == nullptr || ns_of(*timeout) == 0)
    return real_ppoll(files, count, timeout, mask);
  return poll_for(files, count, ns_of(*timeout), mask);
}

PUBLIC int own_checked_ppoll(pollfd*, nfds_t, const timespec*, Mask*, size_t)
    STANDS_FOR("__ppoll_chk");
PUBLIC int own_checked_ppoll(pollfd* files, nfds_t count, const timespec* timeout, Mask* mask,
                             size_t) {
  return own_ppoll(files, count, timeout, mask);
}

PUBLIC int own_pselect(int, fd_set*, fd_set*, fd_set*, const timespec*, Mask*)
    STANDS_FOR("pselect");
PUBLIC int own_pselect(int count, fd_set* in, fd_set* out, fd_set* bad, const timespec* timeout,
                       Mask* mask) {
  if (timeout != nullptr && ns_of(*timeout) == 0) look();
  if (!is_virtual() || timeout == nullptr || ns_of(*timeout) == 0)
    return real_pselect(count, in, out, bad, timeout, mask);
  return select_for(count, in, out, bad, ns_of(*timeout), mask);
}

PUBLIC int own_select(int, fd_set*, fd_set*, fd_set*, timeval*) STANDS_FOR("select");
PUBLIC int own_select(int count, fd_set* in, fd_set* out, fd_set* bad, timeval* timeout) {
  if (timeout == nullptr) return real_pselect(count, in, out, bad, nullptr, nullptr);
  timespec time = {timeout->tv_sec, long(timeout->tv_usec) * 1000};
  return own_pselect(count, in, out, bad, &time, nullptr);
}

PUBLIC int own_epoll_pwait(int, epoll_event*, int, int, Mask*) STANDS_FOR("epoll_pwait");
PUBLIC int own_epoll_pwait(int file, epoll_event* events, int count, int timeout_ms, Mask* mask) {
  if (!is_virtual() || timeout_ms <= 0)
    return real_epoll_pwait(file, events, count, timeout_ms, mask);
  return epoll_for(file, events, count, timeout_ms * 1'000'000LL, mask);
}

PUBLIC int own_epoll_wait(int, epoll_event*, int, int) STANDS_FOR("epoll_wait");
PUBLIC int own_epoll_wait(int file, epoll_event* events, int count, int timeout_ms) {
  return own_epoll_pwait(file, events, count, timeout_ms, nullptr);
}

PUBLIC int own_epoll_pwait2(int, epoll_event*, int, const timespec*, Mask*)
    STANDS_FOR("epoll_pwait2");
PUBLIC int own_epoll_pwait2(int file, epoll_event* events, int count, const timespec* timeout,
                            Mask* mask) {
  bool waits = timeout != nullptr && ns_of(*timeout) > 0;
  if (is_virtual() && waits) return epoll_for(file, events, count, ns_of(*timeout), mask);
  int ms = timeout == nullptr ? -1 : int((ns_of(*timeout) + 999'999) / 1'000'000);
  return real_epoll_pwait(file, events, count, ms, mask);
}

PUBLIC int own_sem_timedwait(sem_t*, const timespec*) STANDS_FOR("sem_timedwait");
PUBLIC int own_sem_timedwait(sem_t* semaphore, const timespec* time) {
  if (!is_virtual()) return real_sem_timedwait(semaphore, time);
  return take_until(semaphore, until_ps_at(CLOCK_REALTIME, *time));
}

PUBLIC int own_sem_clockwait(sem_t*, clockid_t, const timespec*) STANDS_FOR("sem_clockwait");
PUBLIC int own_sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* time) {
  if (!is_virtual()) return real_sem_clockwait(semaphore, clock, time);
  return take_until(semaphore, until_ps_at(clock, *time));
}

// A condition cannot be woken by a signal, and Python's interpreter waits for its own lock by one,
// for milliseconds in which another thread computes. These waits stay those of the wall.
PUBLIC int own_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, const timespec*)
    STANDS_FOR("pthread_cond_timedwait");
PUBLIC int own_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                              const timespec* time) {
  if (!is_virtual()) return real_pthread_cond_timedwait(condition, mutex, time);
  timespec deadline = real_deadline(clock_of(*time), *time);
  return real_pthread_cond_timedwait(condition, mutex, &deadline);
}

PUBLIC int own_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)
    STANDS_FOR("pthread_cond_clockwait");
PUBLIC int own_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                              const timespec* time) {
  if (!is_virtual()) return real_pthread_cond_clockwait(condition, mutex, clock, time);
  timespec deadline = real_deadline(clock, *time);
  return real_pthread_cond_clockwait(condition, mutex, clock, &deadline);
}

PUBLIC int own_mutex_timedlock(pthread_mutex_t*, const timespec*)
    STANDS_FOR("pthread_mutex_timedlock");
PUBLIC int own_mutex_timedlock(pthread_mutex_t* mutex, const timespec* time) {
  if (!is_virtual()) return real_pthread_mutex_timedlock(mutex, time);
  timespec deadline = real_deadline(CLOCK_REALTIME, *time);
  return real_pthread_mutex_timedlock(mutex, &deadline);
}

PUBLIC long own_syscall(long, ...) STANDS_FOR("syscall");
PUBLIC long own_syscall(long number, ...) {
  long given[6];
  va_list more;
  va_start(more, number);
  for (long& one : given) one = va_arg(more, long);
  va_end(more);
  if (is_virtual() && is_timed_futex(number, given)) return wait_on_futex(given);
  return real_syscall()(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
