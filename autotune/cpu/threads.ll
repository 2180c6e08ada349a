; The loop of `threads.py`, which replaces the names between two @ by numbers.

; A loop: what `parallel_for` is given without its threads, but with dimensions in all, the thread
; that calls it, and that one's processor.
%Loop = type { ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i32 }
; The loop, the first of its calls, and the one after the last.
%Share = type { ptr, i64, i64 }
; A function to call on one of Numba's threads, its data, and the thread that calls the loop.
%Noting = type { ptr, ptr, i64 }
; Which pool kernels use (0 Numba's, 1 OpenBLAS's); for each the clock of the processor time of one
; of its threads, 0 where none is known; when to look next, and the other pool's time, -1 where it
; was not looked at since kernels went there.
@pool = global i32 0
@clocks = global [2 x i32] zeroinitializer
@when = global i64 0
@seen = global i64 -1
; Loops that OpenBLAS's threads work on, and reasons why there must be no more.
@lent = global i32 0
@closed = global i32 0

; What Numba's loops call: function, arguments, dimensions, steps, data, dimensions inside,
; arguments, threads. The function is called for parts of the first dimension.
define void @parallel_for(ptr %function, ptr %arguments, ptr %dimensions, ptr %steps, ptr %data,
                          i64 %inner, i64 %count, i64 %threads) {
  %calls = load i64, ptr %dimensions
  %shares = call i64 @llvm.umin.i64(i64 %calls, i64 %threads)
  %self = call i64 @pthread_self()
  %alone = icmp ult i64 %shares, 2
  %enough = icmp ule i64 %shares, @MOST@
  br i1 %alone, label %numbas, label %choose
choose:
  %pool = call i32 @choose()
  %lent = icmp eq i32 %pool, 1
  %lends = and i1 %lent, %enough
  br i1 %lends, label %openblas, label %numbas
numbas:
  ; A thread that is not known yet is noted by what runs there.
  %known = load i32, ptr @clocks
  %unknown = icmp eq i32 %known, 0
  %noting.data = alloca %Noting
  %n0 = insertvalue %Noting undef, ptr %function, 0
  %n1 = insertvalue %Noting %n0, ptr %data, 1
  %n2 = insertvalue %Noting %n1, i64 %self, 2
  store %Noting %n2, ptr %noting.data
  %what = select i1 %unknown, ptr @noting, ptr %function
  %with = select i1 %unknown, ptr %noting.data, ptr %data
  call void inttoptr (i64 @NUMBA@ to ptr)(ptr %what, ptr %arguments, ptr %dimensions,
      ptr %steps, ptr %with, i64 %inner, i64 %count, i64 %threads)
  ret void
openblas:
  %processor = call i32 @sched_getcpu()
  %ranks = add i64 %inner, 1
  %loop = alloca %Loop
  %l0 = insertvalue %Loop undef, ptr %function, 0
  %l1 = insertvalue %Loop %l0, ptr %arguments, 1
  %l2 = insertvalue %Loop %l1, ptr %dimensions, 2
  %l3 = insertvalue %Loop %l2, ptr %steps, 3
  %l4 = insertvalue %Loop %l3, ptr %data, 4
  %l5 = insertvalue %Loop %l4, i64 %ranks, 5
  %l6 = insertvalue %Loop %l5, i64 %count, 6
  %l7 = insertvalue %Loop %l6, i64 %self, 7
  %l8 = insertvalue %Loop %l7, i32 %processor, 8
  store %Loop %l8, ptr %loop
  %all = alloca %Share, i64 %shares
  br label %each
each:
  %i = phi i64 [ 0, %openblas ], [ %next, %each ]
  %next = add i64 %i, 1
  %before = mul i64 %i, %calls
  %first = udiv i64 %before, %shares
  %after = mul i64 %next, %calls
  %end = udiv i64 %after, %shares
  %s0 = insertvalue %Share undef, ptr %loop, 0
  %s1 = insertvalue %Share %s0, i64 %first, 1
  %s2 = insertvalue %Share %s1, i64 %end, 2
  %share = getelementptr %Share, ptr %all, i64 %i
  store %Share %s2, ptr %share
  %last = icmp eq i64 %next, %shares
  br i1 %last, label %run, label %each
run:
  %number = trunc i64 %shares to i32
  %done = call i1 @lend(i32 %number, ptr @share, ptr %all, i32 24)
  br i1 %done, label %end.of.loop, label %numbas
end.of.loop:
  ret void
}

; Have OpenBLAS's threads call a function with arguments of so many bytes each; whether they did.
; OpenBLAS ends its threads before a fork and at the exit, and waits for ever for one that works.
define i1 @lend(i32 %number, ptr %function, ptr %arguments, i32 %bytes) {
  %before = atomicrmw add ptr @lent, i32 1 seq_cst
  %closed = load atomic i32, ptr @closed seq_cst, align 4
  %open = icmp eq i32 %closed, 0
  br i1 %open, label %run, label %done
run:
  %ignored = call i32 inttoptr (i64 @OPENBLAS@ to ptr)(i32 %number, ptr %function,
      ptr %arguments, i32 %bytes)
  br label %done
done:
  %after = atomicrmw sub ptr @lent, i32 1 seq_cst
  ret i1 %open
}

; Lend no threads until `reopen`; how many loops they still work on.
define i32 @close() {
  %before = atomicrmw add ptr @closed, i32 1 seq_cst
  %left = call i32 @left()
  ret i32 %left
}

define i32 @left() {
  %left = load atomic i32, ptr @lent seq_cst, align 4
  ret i32 %left
}

define void @reopen() {
  %before = atomicrmw sub ptr @closed, i32 1 seq_cst
  ret void
}

; A share on a thread of OpenBLAS's, which keeps its affinity even where `keep_apart` changes it.
define void @share(ptr %share) {
  %loop = load ptr, ptr %share
  %value = load %Loop, ptr %loop
  %caller = extractvalue %Loop %value, 7
  %others = extractvalue %Loop %value, 8
  call void @note(i32 1, i64 %caller)
  %mask = alloca [16 x i64]
  %processor = call i32 @sched_getcpu()
  %there = icmp eq i32 %processor, %others
  %self = call i64 @pthread_self()
  %other = icmp ne i64 %self, %caller
  %meets = and i1 %there, %other
  br i1 %meets, label %shared, label %apart
apart:
  call void @calls(ptr %share)
  ret void
shared:
  %error = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  call void @calls(ptr %share)
  %known = icmp eq i32 %error, 0
  br i1 %known, label %restore, label %done
restore:
  %ignored = call i32 @sched_setaffinity(i32 0, i64 128, ptr %mask)
  br label %done
done:
  ret void
}

; The function's calls of a share, all at once: it counts on through the first dimension.
define void @calls(ptr %share) {
  %whole = load %Share, ptr %share
  %loop = extractvalue %Share %whole, 0
  %first = extractvalue %Share %whole, 1
  %end = extractvalue %Share %whole, 2
  %value = load %Loop, ptr %loop
  %function = extractvalue %Loop %value, 0
  %arguments = extractvalue %Loop %value, 1
  %dimensions = extractvalue %Loop %value, 2
  %steps = extractvalue %Loop %value, 3
  %data = extractvalue %Loop %value, 4
  %ranks = extractvalue %Loop %value, 5
  %count = extractvalue %Loop %value, 6
  %sizes = alloca i64, i64 %ranks
  %bytes = mul i64 %ranks, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %sizes, ptr %dimensions, i64 %bytes, i1 false)
  %number = sub i64 %end, %first
  store i64 %number, ptr %sizes
  %moved = alloca ptr, i64 %count
  br label %more
more:
  %i = phi i64 [ 0, %0 ], [ %next, %each ]
  %left = icmp ult i64 %i, %count
  br i1 %left, label %each, label %run
each:
  %from = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %from
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %step = load i64, ptr %step.at
  %offset = mul i64 %step, %first
  %own = getelementptr i8, ptr %argument, i64 %offset
  %to = getelementptr ptr, ptr %moved, i64 %i
  store ptr %own, ptr %to
  %next = add i64 %i, 1
  br label %more
run:
  call void %function(ptr %moved, ptr %sizes, ptr %steps, ptr %data)
  ret void
}

define void @noting(ptr %arguments, ptr %dimensions, ptr %steps, ptr %with) {
  %value = load %Noting, ptr %with
  %function = extractvalue %Noting %value, 0
  %data = extractvalue %Noting %value, 1
  %caller = extractvalue %Noting %value, 2
  call void @note(i32 0, i64 %caller)
  call void %function(ptr %arguments, ptr %dimensions, ptr %steps, ptr %data)
  ret void
}

define void @note(i32 %pool, i64 %caller) {
  %at = getelementptr i32, ptr @clocks, i32 %pool
  %known = load i32, ptr %at
  %unknown = icmp eq i32 %known, 0
  %self = call i64 @pthread_self()
  %other = icmp ne i64 %self, %caller
  %wanted = and i1 %unknown, %other
  br i1 %wanted, label %ask, label %done
ask:
  %error = call i32 @pthread_getcpuclockid(i64 %self, ptr %at)
  br label %done
done:
  ret void
}

; The pool for a loop: kernels follow whoever has used the other one since they last looked. Right
; after that the threads they left still look for work, which says nothing.
define i32 @choose() {
  %pool = load i32, ptr @pool
  %now = call i64 @time(i32 1)
  %when = load i64, ptr @when
  %early = icmp slt i64 %now, %when
  br i1 %early, label %stay, label %look
look:
  %soon = add i64 %now, @LOOK@
  store i64 %soon, ptr @when
  %other = xor i32 %pool, 1
  %at = getelementptr i32, ptr @clocks, i32 %other
  %clock = load i32, ptr %at
  %unknown = icmp eq i32 %clock, 0
  br i1 %unknown, label %lost, label %read
read:
  %time = call i64 @time(i32 %clock)
  %gone = icmp eq i64 %time, -1
  br i1 %gone, label %lost, label %compare
compare:
  %seen = load i64, ptr @seen
  store i64 %time, ptr @seen
  %same = icmp eq i64 %time, %seen
  %first = icmp eq i64 %seen, -1
  %idle = or i1 %same, %first
  br i1 %idle, label %stay, label %follow
lost:
  ; Threads end with a fork, or with whom they worked for.
  store i32 0, ptr %at
  %numbas = icmp eq i32 %other, 0
  br i1 %numbas, label %follow, label %probe
probe:
  call void @probe()
  br label %stay
follow:
  store i32 %other, ptr @pool
  call void @wait()
  ret i32 %other
stay:
  ret i32 %pool
}

; Have one of OpenBLAS's threads noted.
define void @probe() {
  %self = call i64 @pthread_self()
  %callers = alloca [2 x i64]
  store i64 %self, ptr %callers
  %second = getelementptr i64, ptr %callers, i32 1
  store i64 %self, ptr %second
  %done = call i1 @lend(i32 2, ptr @noted, ptr %callers, i32 8)
  call void @wait()
  ret void
}

define void @noted(ptr %caller.at) {
  %caller = load i64, ptr %caller.at
  call void @note(i32 1, i64 %caller)
  ret void
}

; Look again when all are asleep that are not given work.
define void @wait() {
  %now = call i64 @time(i32 1)
  %late = add i64 %now, @SETTLED@
  store i64 %late, ptr @when
  store i64 -1, ptr @seen
  ret void
}

; A clock's nanoseconds; -1 where there is no such clock.
define i64 @time(i32 %clock) {
  %time = alloca [2 x i64]
  %error = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  %failed = icmp ne i32 %error, 0
  %answer = select i1 %failed, i64 -1, i64 %sum
  ret i64 %answer
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @pthread_self()
declare i32 @pthread_getcpuclockid(i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
