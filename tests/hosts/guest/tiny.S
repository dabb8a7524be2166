# A guest of a few bytes, multiboot: writes to 16 MiB of its memory 18 times a second, so that a migration of 1 MiB/s
# never converges, however rarely it gets to run, and gives up vCPUs when they are unplugged, as an ACPI system does. It
# halts meanwhile.
PAGES = 4096
EJECTS = 0xaf00                 # docs/specs/acpi_cpu_hotplug.rst of QEMU, machine type pc

        .section .header, "a"
        .long 0x1badb002, 0, -0x1badb002
        .text
        .globl _start
_start: mov $stack, %esp
        mov $idt, %edi          # vector 8: the timer, where the BIOS left it
        mov $tick, %eax
        mov %ax, 64(%edi)
        mov %cs, 66(%edi)
        movw $0x8e00, 68(%edi)
        shr $16, %eax
        mov %ax, 70(%edi)
        lidt idtr
        mov $0x34, %al          # 18 interrupts a second
        out %al, $0x43
        xor %eax, %eax
        out %al, $0x40
        out %al, $0x40
        mov $0xfe, %al          # and no other
        out %al, $0x21
        mov $0xff, %al
        out %al, $0xa1
        mov $EJECTS, %dx        # from the legacy bitmap of CPUs to the newer registers
        xor %eax, %eax
        out %eax, %dx
        sti
again:  hlt
        inc %ebx
        mov $0x400000, %edi
        mov $PAGES, %ecx
page:   mov %ebx, (%edi)
        add $4096, %edi
        loop page
        mov $3, %ecx
cpu:    mov $EJECTS, %dx
        mov %ecx, %eax
        out %eax, %dx
        mov $EJECTS + 4, %dx
        in %dx, %al
        test $4, %al            # asked to go
        jz stay
        mov $8, %al
        out %al, %dx
stay:   loop cpu
        jmp again
tick:   push %eax
        mov $0x20, %al
        out %al, $0x20
        pop %eax
        iret
        .data
idtr:   .word 127
        .long idt
        .bss
        .balign 8
idt:    .skip 128
        .skip 4096
stack:
